"""What is gathered while the files of a grid are opened one after the other, and what each must have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE, is_called, odd_units
from mpitrain.data.describe.stations import StationsOfRows
from mpitrain.data.describe.times import GREGORIAN, Stamps, read_stamps, read_times
from mpitrain.data.files.variable import FieldFile, VariableInfo, check_claims
from mpitrain.data.selection.expressions.naming import Naming
from mpitrain.data.selection.matching import on_samples, sample_dimensions
from mpitrain.data.selection.rule import OF_PLACES, Condition, PointRule
from mpitrain.data.selection.settings import Selection
from mpitrain.data.selection.source import SourceFile
from mpitrain.data.selection.variable_access import (
    FROM_RADIANS,
    VariableAccess,
    find_access,
    find_main,
    is_radians,
    read_part,
    turned,
)
from mpitrain.data.units import counts_from_a_date, find_conversion
from mpitrain.errors import DataError

_SAME_PLACE_DEGREES = 1e-3
# Days from 1970 to the first day of the Gregorian calendar, from which on the proleptic one has the same dates.
_FIRST_GREGORIAN_DAY = -141427.0


@dataclass
class Grids:
    """What is gathered while the files are opened one after the other."""

    selection: Selection
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    may_lack_targets: bool
    num_trained_on: int
    num_held_out: int
    has_targets: bool = True
    rule: PointRule = field(default_factory=lambda: PointRule((), ""))
    latitude_name: str | None = None
    latitude_scale: float = 1.0
    area_name: str | None = None
    names: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    grid_shape: tuple[int, int] = (1, 1)
    statics: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    exact_statics: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    naming: Naming = field(default_factory=Naming)
    calendar: str = ""
    has_means: bool | None = None
    stations: list[StationsOfRows] = field(default_factory=list)
    places: dict[tuple[str, bool], tuple[Path, npt.NDArray[Any]]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    units: dict[str, str] = field(default_factory=dict)
    records: list[SourceFile] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def main_names(self) -> tuple[str, ...]:
        """What is read from every chunk."""
        return (*self.input_names, *(self.target_names if self.has_targets else ()))

    @property
    def leading_names(self) -> tuple[str, ...]:
        """What the others are held against: the targets, or without them the inputs."""
        return self.target_names if self.has_targets else self.input_names

    def references(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the references to variables of a file that these names need, each once."""
        return tuple(dict.fromkeys(one for name in names for one in self.naming.references(name)))

    def wanted_units(self, name: str) -> str | None:
        """Return the units that a variable is wanted in; None where the first file decides."""
        return self.selection.units.get(name, self.units.get(name))

    @property
    def leading_references(self) -> tuple[str, ...]:
        """The variables that the leading names need; of times alone, those that all names need."""
        return self.references(self.leading_names) or self.references(self.main_names)


def read_file_times(
    grids: Grids, file: FieldFile, info: VariableInfo | None, access: Mapping[str, VariableAccess]
) -> Any:
    """Return the decoded times of a file, by its time variable, where the settings need them.

    Raises DataError where it cannot have them.
    """
    lags = any(one.lag for one in access.values())
    if not grids.naming.clocks and not lags:
        return None
    if not grids.naming.clocks and (info is None or not counts_from_a_date(info.units)):
        return None  # lags count levels
    times, calendar, are_middles = read_times(info, file)
    if info is not None and grids.naming.clocks:
        grids.notices += _notes_of_means(grids, info, file, are_middles)
    grids.calendar = grids.calendar or calendar
    others = grids.records[-1].times if grids.records else None
    is_gregorian = {calendar, grids.calendar} == GREGORIAN and min(
        np.nanmin(one, initial=0.0) for one in (times, others) if one is not None
    ) >= _FIRST_GREGORIAN_DAY
    if calendar != grids.calendar and not is_gregorian:
        raise DataError(
            f"{file.path}: its calendar is '{calendar}', that of {grids.records[0].path} is '{grids.calendar}'; use "
            "files of one calendar together"
        )
    return times


def read_grid_stamps(grids: Grids, file: FieldFile, info: VariableInfo | None) -> Stamps | None:
    """Return the stamps of a file's time levels; None where it has none, and of a table, whose times are many."""
    if grids.grid_shape == (1, 1) or info is None or len(info.shape) > 1:
        return None
    return read_stamps(info, file)


def _notes_of_means(grids: Grids, info: VariableInfo, file: FieldFile, has_means: bool) -> Iterator[str]:
    """Yield a notice where times are those of the middles of means, and where a file differs from the first in that."""
    if grids.has_means is None and has_means:
        yield (
            f"{file.path}: {info.name} stamps means at an end of their intervals: months, days and times of conditions "
            f"are those of the middles, as {info.text('bounds') or info.text('climatology')} says"
        )
    elif grids.has_means not in (None, has_means):
        own, others = ("middles", "stamps") if has_means else ("stamps", "middles")
        yield (
            f"{file.path}: months, days and times of conditions are those of the {own} of its intervals, and of the "
            f"{others} in {grids.records[0].path}: see the bounds and cell_methods of both"
        )
    grids.has_means = has_means if grids.has_means is None else grids.has_means


def in_degrees(grids: Grids, access: Mapping[str, VariableAccess]) -> None:
    """Let conditions on places and areas be those of degrees, where the places are an input in radians too."""
    inputs = grids.references(grids.main_names)

    def scale(name: str) -> float:
        is_converted = name not in inputs and access[name].conversion is not None
        return 1.0 if is_converted or not is_radians(grids.units[name]) else FROM_RADIANS.scale

    conditions = tuple(
        replace(one, scale=scale(one.name)) if isinstance(one, Condition) and one.test in OF_PLACES else one
        for one in grids.rule.conditions
    )
    grids.rule = replace(grids.rule, conditions=conditions)
    if grids.latitude_name is not None:
        grids.latitude_scale = scale(grids.latitude_name)


def check_shapes(grids: Grids, file: FieldFile, access: dict[str, VariableAccess]) -> int:
    """Return the file's number of time levels. Raises DataError where its variables or its grid do not fit."""
    leading = [access[name] for name in grids.leading_references]
    main = max(leading, key=lambda one: one.shape[1] * one.shape[2])
    num_times = max(access[name].shape[0] for name in grids.references(grids.main_names))
    # One target may be constant along an axis that another has.
    rows, columns = (max(one.shape[axis] for one in leading) for axis in (1, 2))
    grid_shape = (rows, columns) if grids.has_targets else main.shape[1:]
    check_claims((one.info for one in access.values()), file.path)
    for one in access.values():
        if 0 in one.shape:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has shape {one.info.shape}: a dimension of length 0 holds "
                "nothing; take this file out of data.data_path, or wait until it is written"
            )
        if not one.info.is_numeric:
            kind = "text" if one.info.is_text else one.info.dtype
            held = file.note_of(one.info.name) or f"holds {kind}, expected numbers; name another"
            raise DataError(f"{file.path}: variable '{one.info.name}' {held}")
        fits = all(size in (1, full) for size, full in zip(one.shape, (num_times, *grid_shape), strict=True))
        if not fits:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has (time, rows, columns) {one.shape}, "
                f"expected {(num_times, *grid_shape)} as '{main.info.name}' has; take variables of one grid"
            )
    if grids.records and grid_shape != grids.grid_shape:
        raise DataError(
            f"{file.path}: its grid of {_times(grid_shape)} is not that of {grids.records[0].path}, "
            f"{_times(grids.grid_shape)}; train on files of one grid{_joining(grid_shape)}"
        )
    grids.grid_shape = grid_shape
    return num_times


def _joining(grid_shape: tuple[int, int]) -> str:
    """Return what to do with files of reports or stations, of which each has as many as it has."""
    return ", or join samples that lie one after the other into one file, as ncrcat does" if 1 in grid_shape else ""


def _times(grid_shape: tuple[int, int]) -> str:
    return f"{grid_shape[0]} rows x {grid_shape[1]} columns"


def check_statics(grids: Grids, file: FieldFile, access: dict[str, VariableAccess]) -> None:
    """Take the variables without time, which files repeat, from the first; raise DataError where a later has others.

    Of files without any time they are those of the grid alone.
    """
    has_time = any(access[name].axes.time is not None for name in grids.references(grids.main_names))
    exact = {
        name: one.decode(read_part(file, one, slice(None), slice(None)))
        for name, one in access.items()
        if one.axes.time is None and (has_time or name in grids.coordinates)
    }
    statics = {name: values.astype(grids.selection.dtype) for name, values in exact.items()}
    if not grids.records:
        grids.statics = statics
        needed = {one for derived in grids.naming.derived.values() for one in derived.names}
        if grids.selection.counts_times:
            grids.exact_statics = {name: exact[name] for name in needed & exact.keys()}
        return
    for name, expected in grids.statics.items():
        found = statics.get(name)
        if (
            found is None
            or found.shape != expected.shape
            or not np.allclose(found, expected, 1e-6, 1e-5, equal_nan=True)
        ):
            what = "its grid" if name in grids.coordinates else "it has no time, and"
            raise DataError(
                f"{file.path}: variable '{access[name].info.name}' is not that of {grids.records[0].path}: {what} must "
                "be the same in all files; train on files of one grid"
            )


def convert_units(grids: Grids, file: FieldFile, access: dict[str, VariableAccess]) -> list[str]:
    """Give each variable of `access` what converts its units to those that are wanted; return a line for each.

    Wanted are those of the selection, or of the first file. Raises DataError where units differ and are not converted.
    """
    notices = _turn_longitudes(grids, file, access)
    for name in grids.references(grids.main_names):
        info, wanted = access[name].info, grids.wanted_units(name)
        if wanted is None:
            notice = odd_units(name, info, file.path)
            notices += [notice] if notice else []
            continue
        what = f"{file.path}: variable '{info.name}'"
        if bool(info.units) != bool(wanted):
            has = f"has units '{info.units}'" if info.units else "names no units"
            notices.append(f"{what} {has}, '{wanted}' are wanted; its values are used as they are")
        conversion = find_conversion(info.units, wanted, what)
        if conversion is not None:
            access[name] = replace(access[name], conversion=conversion)
            notices.append(f"{what} is converted from '{info.units}' to '{wanted}'")
    return notices


def match_dimensions(grids: Grids, description: FileDescription, access: dict[str, VariableAccess]) -> None:
    """Arrange the variables along the dimensions of the targets, by name; say which have another name.

    Raises DataError for a variable along others. Runs of before match by size alone.
    """
    leading_names = [name for name in grids.leading_references if name in access]
    leading = [access[name] for name in leading_names]
    if not leading or not grids.selection.counts_times:
        return
    samples, lines = sample_dimensions(description, leading), list[str]()
    for name, one in access.items():
        access[name], of_one = samples.match(one)
        lines += of_one
    if grids.has_targets and all(set(samples.places) - set(access[name].info.dimensions) for name in leading_names):
        lines.append(f"no target has all of the dimensions {', '.join(samples.places)}: samples are all combinations")
    new = [line for line in dict.fromkeys(lines) if line not in grids.told]
    grids.told |= set(new)
    grids.notices += [f"{description.path}: {line}" for line in new]


def check_places(grids: Grids, description: FileDescription, access: Mapping[str, VariableAccess]) -> None:
    """Raise DataError where a lagged variable would come from another place than its sample: of another file's grid."""
    if not any(one.lag for one in access.values()):
        return
    file, main = description.file, find_main(description, grids.leading_references)
    leading = [access[name] for name in grids.leading_references]
    for quantity in (LATITUDE, LONGITUDE):
        try:
            name = description.find_quantity(quantity, main)
            found = find_access(description, name, True)
        except DataError:
            continue  # nobody knows where the samples are
        one = on_samples(description, found, leading) if grids.selection.counts_times else found
        if one is None:
            continue
        on_grid = all(size in (1, whole) for size, whole in zip(one.shape[1:], grids.grid_shape, strict=True))
        if one.axes.time is not None or not one.info.is_numeric or not on_grid:
            continue
        values = one.decode(read_part(file, one, slice(None), slice(None)))
        # The files held out are a series of their own.
        first_path, first = grids.places.setdefault(
            (quantity, len(grids.records) < grids.num_trained_on), (file.path, values)
        )
        is_same = first.shape == values.shape and bool((np.abs(_apart(values, first)) < _SAME_PLACE_DEGREES).all())
        if not is_same:
            raise DataError(
                f"{file.path}: its '{name}' is not that of {first_path}, and lagged variables are those of the same "
                "place; give files of one grid, or train on each alone"
            )


def _apart(values: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the difference of places in degrees, of longitudes without whole turns; 0 where both are missing."""
    difference = np.mod(values.astype(np.float64) - others + 180.0, 360.0) - 180.0
    return np.where(np.isnan(values) & np.isnan(others), 0.0, difference)


def _turn_longitudes(grids: Grids, file: FieldFile, access: dict[str, VariableAccess]) -> list[str]:
    """Have longitudes read in the turn in which the network has learnt them; return a line for each that may differ."""
    notices: list[str] = []
    for name, between in grids.selection.longitude_ranges.items():
        one = access.get(name)
        if one is None or not is_called(one.info, LONGITUDE):
            continue
        if one.axes.time is None:
            values = one.decode(read_part(file, one, slice(None), slice(None)))
            # More than rounding: the range of single precision may end just inside of the file's own ends.
            if not np.any(np.abs(turned(values, between, one.whole_turn) - values) > one.whole_turn / 2):
                continue
        access[name] = replace(one, turn=between)
        notices.append(
            f"{file.path}: longitudes '{name}' outside of {between[0]:.6g} to {between[1]:.6g}, which the network was "
            "trained on, are read as those a whole turn away"
        )
    return notices
