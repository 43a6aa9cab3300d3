"""How a file holds the variables that the settings name: where each is, which of them have no time, and their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from mpitrain.data.files.decoding import decode
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.axes import COLUMNS, ROWS, Axes, find_axes
from mpitrain.data.selection.chunks import blocks_touched
from mpitrain.data.selection.names import (
    ICE_FRACTION,
    LATITUDE,
    LONGITUDE,
    OCEAN_MASK,
    QUANTITIES,
    find_variable,
    is_absent,
    no_such_role,
    quantity_of,
)
from mpitrain.errors import DataError

# How often each block of each variable was read: (path, variable, numbers of the block along each axis).
ReadCounter = Counter[tuple[str, str, tuple[int, ...]]]
_COORDINATES = (LATITUDE, LONGITUDE, OCEAN_MASK)


@dataclass(frozen=True)
class VariableAccess:
    """A variable of one file, and which of its axes is what."""

    info: VariableInfo
    axes: Axes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


def read_part(
    file: FieldFile, access: VariableAccess, time: slice, rows: slice, reads: ReadCounter | None = None
) -> npt.NDArray[Any]:
    """Return some time levels and rows of a variable as stored, arranged (T, J, I); counts each block in `reads`."""
    slices = access.axes.slices(access.info.shape, time, rows)
    if reads is not None:
        path, name = str(file.path), access.info.name
        reads.update((path, name, block) for block in blocks_touched(access.info, access.axes, slices))
    return access.axes.arrange(file.read_stored(access.info.name, slices))


def find_access(file: FieldFile, name: str, is_coordinate: bool = False) -> VariableAccess:
    """Return where a file has a variable. Raises DataError where it is missing, ambiguous or of too many dimensions."""
    info = file.variables[find_variable(name, file, first_of_several=is_coordinate)]
    only_axis = ROWS if quantity_of(name) is QUANTITIES[LATITUDE] else COLUMNS
    try:
        return VariableAccess(info, find_axes(info, file.variables, only_axis))
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error


def find_role(quantity: str, file: FieldFile, leading_names: tuple[str, ...]) -> str:
    """Return the name of the variable that is the latitude, the longitude, the ocean mask or the ice concentration.

    `leading_names` are the targets, or without them the inputs. The ice concentration is the one of that kind, if there
    is one. Coordinates are CICE's of the U grid where the file has them, else those that the first one's attribute
    `coordinates` names. Raises DataError where there is none.
    """
    if quantity == ICE_FRACTION:
        for name in leading_names:
            if quantity_of(name) is QUANTITIES[ICE_FRACTION]:
                return name
    if quantity in (LATITUDE, LONGITUDE):
        for name in _named_coordinates(file, leading_names):
            if _is_quantity(name, file, quantity):
                return name
    if is_absent(quantity, file):
        raise no_such_role(quantity, file)
    return find_variable(quantity, file, first_of_several=quantity in _COORDINATES)


def coordinate_name(name: str, file: FieldFile) -> bool:
    """Tell whether a variable is part of the grid: latitude, longitude or ocean mask."""
    return any(_is_quantity(name, file, quantity) for quantity in _COORDINATES)


def static_names(
    access: Mapping[str, VariableAccess], main_names: tuple[str, ...], coordinates: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the variables without time that files repeat: of a file without any time, only those of the grid."""
    has_time = any(access[name].axes.time is not None for name in main_names)
    without = [name for name, one in access.items() if one.axes.time is None]
    return tuple(name for name in without if has_time or name in coordinates)


def read_statics(file: FieldFile, access: Mapping[str, VariableAccess], dtype: str) -> dict[str, npt.NDArray[Any]]:
    """Return the measurements (1, J or 1, I or 1) of variables without time, in the samples' type."""
    everything = slice(None)
    return {
        name: decode(read_part(file, one, everything, everything), one.info).astype(dtype)
        for name, one in access.items()
    }


def _named_coordinates(file: FieldFile, leading_names: tuple[str, ...]) -> list[str]:
    try:
        main = file.variables[find_variable(leading_names[0], file)]
    except DataError:
        return []  # which the search for the variables themselves reports
    named = main.text("coordinates").split()
    cice = {"ULAT", "ULON"} & set(file.variables)
    return [] if cice else [name for name in named if name in file.variables]


def _is_quantity(name: str, file: FieldFile, quantity: str) -> bool:
    known = QUANTITIES[quantity]
    info = file.variables.get(name)
    return quantity_of(name) is known or (info is not None and info.text("standard_name") in known.standard_names)
