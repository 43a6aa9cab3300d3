"""How a file holds the variables that the settings name: where each is, which of them have no time, and their parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.cf import (
    COLUMNS,
    ROWS,
    find_time,
    is_time,
    named_coordinates,
    scalar_time,
)
from mpitrain.data.describe.names import (
    CICE_LATITUDE,
    CICE_LONGITUDE,
    ICE_FRACTION,
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
from mpitrain.data.files.compiled.columns import StoredColumn
from mpitrain.data.files.decoding import Decoder
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.axes import Axes, find_axes
from mpitrain.data.selection.chunks import blocks_touched
from mpitrain.data.selection.expressions.levels import find_positions
from mpitrain.data.selection.expressions.reference import Reference, parse_reference
from mpitrain.data.selection.lags import Lag
from mpitrain.data.units import Conversion
from mpitrain.errors import DataError

# How often each block of each variable was read: (path, variable, numbers of the block along each axis).
ReadCounter = Counter[tuple[str, str, tuple[int, ...]]]
_RADIANS, FROM_RADIANS = ("radian", "radians", "rad"), Conversion(180.0 / math.pi, 0.0)
_COORDINATES = (LATITUDE, LONGITUDE, OCEAN_MASK)
TIME_NAME = "time"
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class VariableAccess:
    """A variable of one file, which of its axes is what, and by how much its values come from later or earlier.

    `conversion` is from the file's units to those that are wanted. `turn` are the longitudes from which to which others
    are turned by whole turns, where they are wanted so.
    """

    info: VariableInfo
    axes: Axes
    lag: Lag | None = None
    conversion: Conversion | None = None
    turn: tuple[float, float] | None = None

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.info)

    def column(self, stored: npt.NDArray[Any]) -> StoredColumn | None:
        """Return stored values (n,) with what makes measurements of them; None where `decode` alone knows how."""
        rule, conversion = self._decoder.rule(stored.dtype), self.conversion
        if rule is None or self.turn is not None:
            return None
        return StoredColumn(stored, rule, None if conversion is None else (conversion.scale, conversion.offset))

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return measurements of stored values, in the units that are wanted."""
        measured, conversion = self._decoder.decode(stored), self.conversion
        if conversion is not None:
            measured = measured.astype(np.float64) * conversion.scale + conversion.offset
        return measured if self.turn is None else turned(measured, self.turn, self.whole_turn)

    @property
    def whole_turn(self) -> float:
        """The longitudes of one turn, in the units of the variable."""
        stored = 2 * math.pi if in_radians(self.info) else 360.0
        return stored if self.conversion is None else stored * self.conversion.scale

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


def in_radians(info: VariableInfo) -> bool:
    """Tell whether a variable's units are radians."""
    return is_radians(info.units)


def is_radians(units: str) -> bool:
    """Tell whether units are radians."""
    return units.lower() in _RADIANS


def turned(longitudes: npt.NDArray[Any], between: tuple[float, float], whole_turn: float) -> npt.NDArray[Any]:
    """Return longitudes, those outside of `between` by whole turns as near to its middle as can be.

    Numbers of more than two turns are no longitudes, and stay.
    """
    low, high = between
    west = (low + high) / 2 - whole_turn / 2
    with np.errstate(invalid="ignore"):
        stays = ((longitudes >= low) & (longitudes <= high)) | (np.abs(longitudes) > 2 * whole_turn)
    return np.where(stays, longitudes, np.mod(longitudes.astype(np.float64) - west, whole_turn) + west)


def is_longitude_of(name: str, file: FieldFile) -> bool:
    """Tell whether a variable of the file is the longitude, by its attributes or its name."""
    return name in file.variables and _is_quantity(name, file, LONGITUDE)


def read_part(
    file: FieldFile, access: VariableAccess, time: slice, rows: slice, reads: ReadCounter | None = None
) -> npt.NDArray[Any]:
    """Return some time levels and rows of a variable as stored, arranged (T, J, I); counts each block in `reads`."""
    return access.axes.arrange(read_stored(file, access, time, rows, reads))


def read_stored(
    file: FieldFile, access: VariableAccess, time: slice, rows: slice, reads: ReadCounter | None = None,
    spans: Mapping[int, tuple[int, int]] | None = None,
) -> npt.NDArray[Any]:  # fmt: skip
    """Return some time levels and rows of a variable as stored, with the positions `spans` along its fixed axes."""
    slices = access.axes.slices(access.info.shape, time, rows, spans)
    if reads is not None:
        path, name = str(file.path), access.info.name
        reads.update((path, name, block) for block in blocks_touched(access.info, access.axes, slices))
    return file.read_stored(access.info.name, slices)


def find_access(
    file: FieldFile, name: str, is_coordinate: bool = False, coordinates: Mapping[str, str] = NO_NAMES
) -> VariableAccess:
    """Return where a file has what `name` refers to, a variable or one level of it.

    `coordinates` are the variables that the user names for latitude, longitude and time (`data.coordinates`).
    Raises DataError where it is missing, ambiguous or of too many dimensions.
    """
    reference = reference_of(name, file)
    info = file.variables[find_variable(reference.name, file, first_of_several=is_coordinate)]
    only_axis = ROWS if _is_quantity(info.name, file, LATITUDE) and not _is_of_cells(info, file) else COLUMNS
    positions = find_positions(reference, info, file)
    if any(len(found) > 1 for found in positions.values()):
        raise DataError(f"{file.path}: '{name}' stands for several levels, here one is needed; name one, as in [z=0]")
    try:
        fixed = {axis: found[0] for axis, found in positions.items()}
        times = named_variable(TIME_NAME, file, coordinates)
        time_dimension = times.dimensions[0] if times is not None and times.shape else None
        axes = find_axes(info, file.variables, only_axis, fixed, time_dimension)
        in_degrees = FROM_RADIANS if is_coordinate and in_radians(info) else None
        lag = Lag(reference.lag, reference.by_row) if reference.lag else None
        return VariableAccess(info, axes, lag, in_degrees)
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error


def reference_of(name: str, file: FieldFile) -> Reference:
    """Return what a name refers to: a name that the file has is itself, brackets or not."""
    return Reference(name) if name in file.variables else parse_reference(name, "variables")


def named_variable(quantity: str, file: FieldFile, coordinates: Mapping[str, str]) -> VariableInfo | None:
    """Return the variable that the user names for a coordinate. Raises DataError where the file has no such variable.

    None where nobody names one.
    """
    name = coordinates.get(quantity)
    if name is None:
        return None
    if is_absent(name, file):
        raise DataError(
            f"{file.path}: no variable '{name}', which data.coordinates names as {_COORDINATE_WORDS[quantity]}; this "
            f"one has {list_names(file.variables) or 'none'}"
        )
    return file.variables[find_variable(name, file)]


_COORDINATE_WORDS = {LATITUDE: "latitude", LONGITUDE: "longitude", TIME_NAME: "time"}


def find_role(
    quantity: str, file: FieldFile, leading_names: tuple[str, ...], coordinates: Mapping[str, str] = NO_NAMES
) -> str:
    """Return the name of the variable that is the latitude, the longitude, the ocean mask or the ice concentration.

    `leading_names` are the targets, or without them the inputs. The ice concentration is the one of that kind, if there
    is one. Coordinates are those that the user names, else CICE's of the U grid where the file has them, else those
    of the first one. Raises DataError where there is none.
    """
    if quantity == ICE_FRACTION:
        for name in leading_names:
            if quantity_of(name) is QUANTITIES[ICE_FRACTION]:
                return name
    if quantity in (LATITUDE, LONGITUDE):
        named = named_variable(quantity, file, coordinates)
        if named is not None:
            return named.name
        for name in _coordinates_of(file, leading_names):
            if _is_quantity(name, file, quantity):
                return name
    if is_absent(quantity, file):
        raise no_such_role(quantity, file)
    return find_variable(quantity, file, first_of_several=quantity in _COORDINATES)


def time_variable(
    access: Mapping[str, VariableAccess], file: FieldFile, coordinates: Mapping[str, str] = NO_NAMES
) -> VariableInfo | None:
    """Return the variable that says when the time levels are; None where there is none.

    The one that the user names, else the coordinate variable of the time axis, else another one along it that is a
    time; of variables without such an axis, the single time that their attribute `coordinates` names.
    """
    named = named_variable(TIME_NAME, file, coordinates)
    if named is not None:
        return named
    for one in access.values():
        if one.axes.time is not None:
            dimension = one.info.dimensions[one.axes.time]
            own = coordinate_of(one.info, dimension, file.variables)
            if own is not None and is_time(own):
                return own
            is_told = own is not None and own.is_numeric and one.axes.time not in one.axes.guessed
            return find_time(dimension, one.info, file.variables) or (own if is_told else None)
    single = (scalar_time(one.info, file.variables) for one in access.values())
    return next((one for one in single if one is not None), None)


def coordinate_name(name: str, file: FieldFile) -> bool:
    """Tell whether a variable is part of the grid: latitude, longitude or ocean mask."""
    return any(_is_quantity(name, file, quantity) for quantity in _COORDINATES)


def _is_of_cells(info: VariableInfo, file: FieldFile) -> bool:
    """Tell whether a latitude is that of cells in no order of rows: then a longitude lies along its dimension too."""
    return any(
        other.dimensions == info.dimensions and info.dimensions != ("",)
        for name, other in file.variables.items()
        if len(other.shape) == 1 and _is_quantity(name, file, LONGITUDE)
    )


def _coordinates_of(file: FieldFile, leading_names: tuple[str, ...]) -> list[str]:
    """Return the names of the coordinates of the first variable, those that serve best first.

    Those that it names, then places on both axes of its grid, coordinate variables of its dimensions, and other places
    along them. None of a CICE history with places of the U grid, which are those of the original program.
    """
    try:
        main = file.variables[find_variable(reference_of(leading_names[0], file).name, file)]
    except DataError:
        return []  # which the search for the variables themselves reports
    if is_cice_history(file) and {CICE_LATITUDE, CICE_LONGITUDE} & set(file.variables):
        return []
    space = dimensions_of_space(main, file.variables)
    pairs = sorted(place_pairs(main, file.variables), key=lambda pair: not space & set(pair[0].dimensions))
    on_grid = [pair for pair in pairs if len(pair[0].dimensions) == 2 and set(pair[0].dimensions) <= space]
    own = (coordinate_of(main, name, file.variables) for name in main.dimensions if name)
    found = (named_coordinates(main, file.variables), *on_grid, own, *pairs)
    return [one.name for group in found for one in group if one is not None]


def _is_quantity(name: str, file: FieldFile, quantity: str) -> bool:
    info = file.variables.get(name)
    return quantity_of(name) is QUANTITIES[quantity] if info is None else is_called(info, quantity)
