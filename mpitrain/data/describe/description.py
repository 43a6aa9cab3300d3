"""Description of an open data file: its coordinates, the axes of a variable, and its times."""

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
    coordinate_pairs,
    find_variable,
    is_absent,
    is_called,
    is_cice_history,
    list_names,
    no_such_role,
    quantity_of,
)
from mpitrain.data.describe.roles import coordinate_of, dimensions_of_space
from mpitrain.data.files.variable import FieldFile, VariableInfo, Variables
from mpitrain.errors import DataError

_OF_GRID = (LATITUDE, LONGITUDE, OCEAN_MASK)
TIME_NAME, STATION = "time", "station"
_SETTING_NAMES = {LATITUDE: "latitude", LONGITUDE: "longitude", TIME_NAME: "time", STATION: "station"}


@dataclass(frozen=True)
class FileDescription:
    """Description of an open file, by conventions, usual names and the user's settings.

    `named` are the variables of `data.coordinates`, by "lat", "lon" and "time"; `same_dimensions` is `data.dimensions`,
    which maps a dimension to an equal one. With `of_fields` arrays without dimension names are fields.
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
        """Return the variable that a user calls `request`; see `find_variable`. Raises DataError if there is none."""
        return self.variables[find_variable(request, self.file, first_of_several)]

    def is_quantity(self, name: str, quantity: str) -> bool:
        """Tell whether a variable is a quantity of the table `QUANTITIES`, by its attributes or its name."""
        info = self.variables.get(name)
        return quantity_of(name) is QUANTITIES[quantity] if info is None else is_called(info, quantity)

    def is_same_dimension(self, name: str, other: str) -> bool:
        """Tell whether two names are the same dimension, or are declared the same in `data.dimensions`."""
        for _ in self.same_dimensions:
            name, other = (self.same_dimensions.get(one, one) for one in (name, other))
        return name == other

    def is_of_grid(self, name: str) -> bool:
        """Tell whether a variable is part of the grid: latitude, longitude or ocean mask."""
        return any(self.is_quantity(name, quantity) for quantity in _OF_GRID)

    def variable_named(self, quantity: str) -> VariableInfo | None:
        """Return the variable that the user names for a coordinate; None if the settings name none.

        Raises DataError if the file does not have that variable.
        """
        name = self.named.get(quantity)
        if name is None:
            return None
        if is_absent(name, self.file):
            raise DataError(
                f"{self.path}: no variable '{name}', which data.coordinates names as {_SETTING_NAMES[quantity]}; this "
                f"one has {list_names(self.variables) or 'none'}"
            )
        return self.find(name)

    def find_quantity(self, quantity: str, main: VariableInfo | None) -> str:
        """Return the name of the variable that is the latitude, the longitude or another quantity of the table.

        For coordinates this is the variable that the user names, otherwise CICE's on the U grid if the file has it,
        otherwise that of `main`, the first target, or the first input without targets. Raises DataError if there is
        none.
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
        """Return the coordinates of a variable, in order of preference.

        First those that its attribute `coordinates` names, then latitude and longitude along both axes of its grid,
        coordinate variables of its dimensions, and other latitudes and longitudes along these. Empty for a CICE history
        with the U grid, whose coordinates are then used, as in the original program.
        """
        if is_cice_history(self.file) and {CICE_LATITUDE, CICE_LONGITUDE} & set(self.variables):
            return ()
        space = dimensions_of_space(info, self.variables)
        pairs = sorted(coordinate_pairs(info, self.variables), key=lambda pair: not space & set(pair[0].dimensions))
        on_grid = [pair for pair in pairs if len(pair[0].dimensions) == 2 and set(pair[0].dimensions) <= space]
        own = (coordinate_of(info, name, self.variables) for name in info.dimensions if name)
        found = chain(named_coordinates(info, self.variables), chain(*on_grid), own, chain(*pairs))
        return tuple(one for one in found if one is not None)

    def axes_of(self, info: VariableInfo, fixed: Mapping[int, int]) -> Axes:
        """Return the axes of a variable, with some axes `fixed` at a position. Raises DataError as `find_axes`."""
        is_of_rows = self.is_quantity(info.name, LATITUDE) and not self._is_of_cells(info)
        times = self.variable_named(TIME_NAME)
        named = times.dimensions[0] if times is not None and times.shape else None
        along = (one for one in info.dimensions if named is not None and self.is_same_dimension(one, named))
        time_dimension = next(along, None)
        return find_axes(info, self.variables, ROWS if is_of_rows else COLUMNS, fixed, time_dimension)

    def time_of(self, accesses: Iterable[tuple[VariableInfo, Axes]]) -> VariableInfo | None:
        """Return the variable with the times of the time levels of some variables; None if there is none.

        This is the variable that the user names, otherwise the coordinate variable of the time axis, otherwise another
        time along it; for variables without a time axis, the scalar time that their attribute `coordinates` names.
        """
        named = self.variable_named(TIME_NAME)
        if named is not None:
            return named
        single = None
        for info, axes in accesses:
            if axes.time is not None:
                dimension = info.dimensions[axes.time]
                own = coordinate_of(info, dimension, self.variables)
                if own is not None and is_time(own):
                    return own
                is_known = own is not None and own.is_numeric and axes.time not in axes.guessed
                return find_time(dimension, info, self.variables) or (own if is_known else None)
            single = single or scalar_time(info, self.variables)
        return single

    def _is_of_cells(self, info: VariableInfo) -> bool:
        """Tell whether a latitude is that of unstructured cells: a longitude lies along the same dimension."""
        return any(
            other.dimensions == info.dimensions and info.dimensions != ("",)
            for name, other in self.variables.items()
            if len(other.shape) == 1 and self.is_quantity(name, LONGITUDE)
        )
