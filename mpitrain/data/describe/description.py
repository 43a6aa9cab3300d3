"""What one data file means: which variable is which coordinate, the axes of a variable, and its times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from mpitrain.data.describe.axes import Axes, find_axes
from mpitrain.data.describe.cf import COLUMNS, ROWS, find_time, is_time, named_coordinates, scalar_time
from mpitrain.data.describe.names import (
    CICE_LATITUDE,
    CICE_LONGITUDE,
    LATITUDE,
    LONGITUDE,
    OCEAN_MASK,
    QUANTITIES,
    find_variable,
    is_absent,
    is_called,
    is_cice_history,
    list_names,
    no_such_role,
    place_pairs,
    quantity_of,
)
from mpitrain.data.describe.roles import coordinate_of, dimensions_of_space
from mpitrain.data.files.variable import FieldFile, VariableInfo, Variables
from mpitrain.errors import DataError

_OF_GRID = (LATITUDE, LONGITUDE, OCEAN_MASK)
TIME_NAME, STATION = "time", "station"
_SETTING_WORDS = {LATITUDE: "latitude", LONGITUDE: "longitude", TIME_NAME: "time", STATION: "station"}


@dataclass(frozen=True)
class FileDescription:
    """What an open file means: by its conventions, usual names, and what the user names.

    `named` are the variables of `data.coordinates`, by "lat", "lon" and "time"; `same_dimensions` are the dimensions of
    `data.dimensions`, each with the one that it is too. `of_fields`: an array without names of dimensions is a field.
    """

    file: FieldFile
    named: Mapping[str, str] = field(default_factory=dict)
    same_dimensions: Mapping[str, str] = field(default_factory=dict)
    of_fields: bool = False

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def variables(self) -> Variables:
        """The file's variables, by name."""
        return self.file.variables

    def find(self, request: str, first_of_several: bool = False) -> VariableInfo:
        """Return the variable that a user calls `request`; see `find_variable`. Raises DataError."""
        return self.variables[find_variable(request, self.file, first_of_several)]

    def is_quantity(self, name: str, quantity: str) -> bool:
        """Tell whether a variable is a quantity of the table, by its attributes or its name."""
        info = self.variables.get(name)
        return quantity_of(name) is QUANTITIES[quantity] if info is None else is_called(info, quantity)

    def is_same_dimension(self, name: str, other: str) -> bool:
        """Tell whether two names are one dimension's, by the user's word where they differ."""
        for _ in self.same_dimensions:
            name, other = (self.same_dimensions.get(one, one) for one in (name, other))
        return name == other

    def is_of_grid(self, name: str) -> bool:
        """Tell whether a variable is part of the grid: latitude, longitude or ocean mask."""
        return any(self.is_quantity(name, quantity) for quantity in _OF_GRID)

    def variable_named(self, quantity: str) -> VariableInfo | None:
        """Return the variable that the user names for a coordinate; None where nobody names one.

        Raises DataError where the file has no such variable.
        """
        name = self.named.get(quantity)
        if name is None:
            return None
        if is_absent(name, self.file):
            raise DataError(
                f"{self.path}: no variable '{name}', which data.coordinates names as {_SETTING_WORDS[quantity]}; this "
                f"one has {list_names(self.variables) or 'none'}"
            )
        return self.find(name)

    def find_quantity(self, quantity: str, main: VariableInfo | None) -> str:
        """Return the name of the variable that is the latitude, the longitude or another quantity of the table.

        Of coordinates: the one that the user names, else CICE's of the U grid where the file has them, else that of
        `main`, the first target or without targets the first input. Raises DataError where there is none.
        """
        if quantity in (LATITUDE, LONGITUDE):
            named = self.variable_named(quantity)
            if named is not None:
                return named.name
            of_main = () if main is None else self.coordinates_of(main)
            found = next((one.name for one in of_main if self.is_quantity(one.name, quantity)), None)
            if found is not None:
                return found
        if is_absent(quantity, self.file):
            raise no_such_role(quantity, self.file)
        return find_variable(quantity, self.file, first_of_several=quantity in _OF_GRID)

    def coordinates_of(self, info: VariableInfo) -> tuple[VariableInfo, ...]:
        """Return the coordinates of a variable, those that serve best first.

        Those that it names, then places on both axes of its grid, coordinate variables of its dimensions, and other
        places along them. None of a CICE history with places of the U grid, which are those of the original program.
        """
        if is_cice_history(self.file) and {CICE_LATITUDE, CICE_LONGITUDE} & set(self.variables):
            return ()
        space = dimensions_of_space(info, self.variables)
        pairs = sorted(place_pairs(info, self.variables), key=lambda pair: not space & set(pair[0].dimensions))
        on_grid = [pair for pair in pairs if len(pair[0].dimensions) == 2 and set(pair[0].dimensions) <= space]
        own = (coordinate_of(info, name, self.variables) for name in info.dimensions if name)
        found = chain(named_coordinates(info, self.variables), chain(*on_grid), own, chain(*pairs))
        return tuple(one for one in found if one is not None)

    def axes_of(self, info: VariableInfo, fixed: Mapping[int, int]) -> Axes:
        """Return the axes of a variable, of which some are `fixed` at a position. Raises DataError as `find_axes`."""
        is_of_rows = self.is_quantity(info.name, LATITUDE) and not self._is_of_cells(info)
        times = self.variable_named(TIME_NAME)
        named = times.dimensions[0] if times is not None and times.shape else None
        along = (one for one in info.dimensions if named is not None and self.is_same_dimension(one, named))
        time_dimension = next(along, None)
        return find_axes(info, self.variables, ROWS if is_of_rows else COLUMNS, fixed, time_dimension)

    def time_of(self, held: Iterable[tuple[VariableInfo, Axes]]) -> VariableInfo | None:
        """Return the variable that says when the time levels of some variables are; None where there is none.

        The one that the user names, else the coordinate variable of the time axis, else another one along it that is a
        time; of variables without such an axis, the single time that their attribute `coordinates` names.
        """
        named = self.variable_named(TIME_NAME)
        if named is not None:
            return named
        single = None
        for info, axes in held:
            if axes.time is not None:
                dimension = info.dimensions[axes.time]
                own = coordinate_of(info, dimension, self.variables)
                if own is not None and is_time(own):
                    return own
                is_told = own is not None and own.is_numeric and axes.time not in axes.guessed
                return find_time(dimension, info, self.variables) or (own if is_told else None)
            single = single or scalar_time(info, self.variables)
        return single

    def _is_of_cells(self, info: VariableInfo) -> bool:
        """Tell whether a latitude is of cells in no order of rows: a longitude lies along its dimension too."""
        return any(
            other.dimensions == info.dimensions and info.dimensions != ("",)
            for name, other in self.variables.items()
            if len(other.shape) == 1 and self.is_quantity(name, LONGITUDE)
        )
