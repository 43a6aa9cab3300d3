"""How a file holds the variables that the settings name: where each is, which of them have no time, and their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.axes import Axes
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.ragged import has_observations
from mpitrain.data.files.compiled.columns import StoredColumn
from mpitrain.data.files.decoding import Decoder
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.expressions.clock import is_clock
from mpitrain.data.selection.expressions.levels import find_positions
from mpitrain.data.selection.expressions.naming import names_needed
from mpitrain.data.selection.expressions.reference import Reference, parse_reference
from mpitrain.data.selection.settings import Selection
from mpitrain.data.selection.times.lags import Lag
from mpitrain.data.units import Conversion
from mpitrain.errors import ConfigError, DataError

_RADIANS, FROM_RADIANS = ("radian", "radians", "rad"), Conversion(180.0 / math.pi, 0.0)


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
        stored = 2 * math.pi if is_radians(self.info.units) else 360.0
        return stored if self.conversion is None else stored * self.conversion.scale

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


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


def read_part(file: FieldFile, access: VariableAccess, time: slice, rows: slice) -> npt.NDArray[Any]:
    """Return some time levels and rows of a variable as stored, arranged (T, J, I)."""
    return access.axes.arrange(read_stored(file, access, time, rows))


def read_stored(
    file: FieldFile, access: VariableAccess, time: slice, rows: slice,
    spans: Mapping[int, tuple[int, int]] | None = None,
) -> npt.NDArray[Any]:  # fmt: skip
    """Return some time levels and rows of a variable as stored, with the positions `spans` along its fixed axes."""
    return file.read_stored(access.info.name, access.axes.slices(access.info.shape, time, rows, spans))


def find_access(description: FileDescription, name: str, is_coordinate: bool = False) -> VariableAccess:
    """Return where a file has what `name` refers to, a variable or one level of it.

    Raises DataError where it is missing, ambiguous or of too many dimensions.
    """
    file, reference = description.file, reference_of(name, description.file)
    info = description.find(reference.name, first_of_several=is_coordinate)
    positions = find_positions(reference, info, file)
    if any(len(found) > 1 for found in positions.values()):
        raise DataError(f"{file.path}: '{name}' stands for several levels, here one is needed; name one, as in [z=0]")
    try:
        axes = description.axes_of(info, {axis: found[0] for axis, found in positions.items()})
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error
    in_degrees = FROM_RADIANS if is_coordinate and is_radians(info.units) else None
    lag = Lag(reference.lag, reference.by_row) if reference.lag else None
    return VariableAccess(info, axes, lag, in_degrees)


def find_main(description: FileDescription, leading_names: Sequence[str]) -> VariableInfo | None:
    """Return the variable of the first name; None where the file lacks it, which the search for it reports."""
    try:
        return description.find(reference_of(leading_names[0], description.file).name) if leading_names else None
    except DataError:
        return None


def time_variable(
    description: FileDescription, access: Mapping[str, VariableAccess], leading_names: Sequence[str]
) -> VariableInfo | None:
    """Return the variable that says when the time levels are; None where there is none.

    Those of the leading variables, or of others where these have no time, of more than one level before of one.
    """
    order = sorted(access, key=lambda name: (access[name].shape[0] == 1, name not in leading_names))
    return description.time_of((access[name].info, access[name].axes) for name in order)


def reference_of(name: str, file: FieldFile) -> Reference:
    """Return what a name refers to: a name that the file has is itself, brackets or not."""
    return Reference(name) if name in file.variables else parse_reference(name, "variables")


def with_observations(selection: Selection, file: FieldFile) -> Selection:
    """Return the selection with the variables along whose observations samples lie; itself without ragged arrays."""
    if not selection.counts_times or not has_observations(file.variables):
        return selection
    description = selection.describe(file)
    for names in (selection.target_names or (), selection.input_names or ()):
        with suppress(DataError, ConfigError):  # the search for variables reports what is missing
            needed = names_needed(names, file)
            found = tuple(
                description.find(reference_of(one, file).name).name for one in needed if not is_clock(one, file)
            )
            if found:
                return replace(selection, reading=replace(selection.reading, sampled=found))
    return selection
