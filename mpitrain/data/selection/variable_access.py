"""How a file holds the variables that the settings name: where each is, which of them have no time, and their parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.compiled.columns import StoredColumn
from mpitrain.data.files.decoding import Decoder
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.axes import COLUMNS, ROWS, Axes, coordinate_of, find_axes
from mpitrain.data.selection.chunks import blocks_touched
from mpitrain.data.selection.expressions.levels import find_positions
from mpitrain.data.selection.expressions.reference import Reference, parse_reference
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
from mpitrain.data.units import Conversion
from mpitrain.errors import DataError

# How often each block of each variable was read: (path, variable, numbers of the block along each axis).
ReadCounter = Counter[tuple[str, str, tuple[int, ...]]]
_RADIANS, _FROM_RADIANS = ("radian", "radians", "rad"), Conversion(180.0 / math.pi, 0.0)
_COORDINATES = (LATITUDE, LONGITUDE, OCEAN_MASK)


@dataclass(frozen=True)
class VariableAccess:
    """A variable of one file, which of its axes is what, and by how many time levels its values come from later.

    `conversion` is from the file's units to those that are wanted.
    """

    info: VariableInfo
    axes: Axes
    lag: int = 0
    conversion: Conversion | None = None

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.info)

    def column(self, stored: npt.NDArray[Any]) -> StoredColumn | None:
        """Return stored values (n,) with what makes measurements of them; None where `decode` alone knows how."""
        rule, conversion = self._decoder.rule(stored.dtype), self.conversion
        if rule is None:
            return None
        return StoredColumn(stored, rule, None if conversion is None else (conversion.scale, conversion.offset))

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return measurements of stored values, in the units that are wanted."""
        measured, conversion = self._decoder.decode(stored), self.conversion
        return measured if conversion is None else measured.astype(np.float64) * conversion.scale + conversion.offset

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


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


def find_access(file: FieldFile, name: str, is_coordinate: bool = False) -> VariableAccess:
    """Return where a file has what `name` refers to, a variable or one level of it.

    Raises DataError where it is missing, ambiguous or of too many dimensions.
    """
    reference = reference_of(name, file)
    info = file.variables[find_variable(reference.name, file, first_of_several=is_coordinate)]
    is_latitude = quantity_of(reference.name) is QUANTITIES[LATITUDE]
    only_axis = ROWS if is_latitude and not _is_of_cells(info, file) else COLUMNS
    positions = find_positions(reference, info, file)
    if any(len(found) > 1 for found in positions.values()):
        raise DataError(f"{file.path}: '{name}' stands for several levels, here one is needed; name one, as in [z=0]")
    try:
        fixed = {axis: found[0] for axis, found in positions.items()}
        axes = find_axes(info, file.variables, only_axis, fixed)
        in_degrees = _FROM_RADIANS if is_coordinate and info.units.lower() in _RADIANS else None
        return VariableAccess(info, axes, reference.lag, in_degrees)
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error


def reference_of(name: str, file: FieldFile) -> Reference:
    """Return what a name refers to: a name that the file has is itself, brackets or not."""
    return Reference(name) if name in file.variables else parse_reference(name, "variables")


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


def time_variable(access: Mapping[str, VariableAccess], file: FieldFile) -> VariableInfo | None:
    """Return the coordinate variable of the time axis that the variables lie along; None where there is none."""
    for one in access.values():
        if one.axes.time is not None:
            info = coordinate_of(one.info, one.info.dimensions[one.axes.time], file.variables)
            return info if info is not None and info.is_numeric else None
    return None


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
