"""Access to the variables of a file that the settings name: their axes, units and lags, and the reading of parts."""

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
    """A variable of one file, the roles of its axes, and the lag of its values.

    `conversion` is from the file's units to the wanted units. `turn` is the range of longitudes towards which values
    are shifted by whole turns; None: values are not shifted.
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
        """Return stored values (n,) with the rule that decodes them; None if only `decode` can decode them."""
        rule, conversion = self._decoder.rule(stored.dtype), self.conversion
        if rule is None or self.turn is not None:
            return None
        return StoredColumn(stored, rule, None if conversion is None else (conversion.scale, conversion.offset))

    def decode(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the measurements of stored values, in the wanted units."""
        measured, conversion = self._decoder.decode(stored), self.conversion
        if conversion is not None:
            measured = measured.astype(np.float64) * conversion.scale + conversion.offset
        return measured if self.turn is None else turned(measured, self.turn, self.longitude_period)

    @property
    def longitude_period(self) -> float:
        """The length of one turn of longitude, in the wanted units."""
        stored = 2 * math.pi if is_radians(self.info.units) else 360.0
        return stored if self.conversion is None else stored * self.conversion.scale

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


def is_radians(units: str) -> bool:
    """Return whether units are radians."""
    return units.lower() in _RADIANS


def turned(longitudes: npt.NDArray[Any], between: tuple[float, float], longitude_period: float) -> npt.NDArray[Any]:
    """Return longitudes, those outside the range `between` shifted by whole turns to within half a turn of its middle.

    Values beyond two turns in magnitude are not longitudes, and are not shifted.
    """
    low, high = between
    west = (low + high) / 2 - longitude_period / 2
    with np.errstate(invalid="ignore"):
        stays = ((longitudes >= low) & (longitudes <= high)) | (np.abs(longitudes) > 2 * longitude_period)
    return np.where(stays, longitudes, np.mod(longitudes.astype(np.float64) - west, longitude_period) + west)


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
    """Return the access to the variable of a file, or the level of it, to which `name` refers.

    Raises DataError if it is missing or ambiguous, or has too many dimensions.
    """
    file, reference = description.file, reference_of(name, description.file)
    info = description.find(reference.name, first_of_several=is_coordinate)
    positions = find_positions(reference, info, file)
    if any(len(found) > 1 for found in positions.values()):
        raise DataError(f"{file.path}: '{name}' selects several levels, one is needed here; select one, as in [z=0]")
    try:
        axes = description.axes_of(info, {axis: found[0] for axis, found in positions.items()})
    except DataError as error:
        raise DataError(f"{file.path}: {error}") from error
    in_degrees = FROM_RADIANS if is_coordinate and is_radians(info.units) else None
    lag = Lag(reference.lag, reference.by_row) if reference.lag else None
    return VariableAccess(info, axes, lag, in_degrees)


def find_main(description: FileDescription, leading_names: Sequence[str]) -> VariableInfo | None:
    """Return the variable of the first name; None if the file lacks it, which `find_access` reports."""
    try:
        return description.find(reference_of(leading_names[0], description.file).name) if leading_names else None
    except DataError:
        return None


def time_variable(
    description: FileDescription, access: Mapping[str, VariableAccess], leading_names: Sequence[str]
) -> VariableInfo | None:
    """Return the variable that holds the times of the time levels; None if there is none.

    Variables with more than one time level are searched first, and among them the leading variables.
    """
    order = sorted(access, key=lambda name: (access[name].shape[0] == 1, name not in leading_names))
    return description.time_of((access[name].info, access[name].axes) for name in order)


def reference_of(name: str, file: FieldFile) -> Reference:
    """Return the reference in a name; a name that the file has is that variable's, with or without brackets."""
    return Reference(name) if name in file.variables else parse_reference(name, "variables")


def with_observations(selection: Selection, file: FieldFile) -> Selection:
    """Return the selection with the variables that define the observations; unchanged without ragged arrays."""
    if not selection.has_named_dimensions or not has_observations(file.variables):
        return selection
    description = selection.describe(file)
    for names in (selection.target_names or (), selection.input_names or ()):
        with suppress(DataError, ConfigError):  # the later search for variables reports those that are missing
            needed = names_needed(names, file)
            found = tuple(
                description.find(reference_of(one, file).name).name for one in needed if not is_clock(one, file)
            )
            if found:
                return replace(selection, reading=replace(selection.reading, sampled=found))
    return selection
