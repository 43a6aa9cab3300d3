"""Opening of one file of gridded variables, and checks that it agrees with the first file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE, is_called, odd_units
from mpitrain.data.describe.times import GREGORIAN, DecodedTimes, read_stored_times, read_times
from mpitrain.data.files.variable import FieldFile, VariableInfo, check_claims
from mpitrain.data.selection.matching import on_samples
from mpitrain.data.selection.notes import notes_of_file
from mpitrain.data.selection.plan import Access, GridPlan, find_all, has_none, listed
from mpitrain.data.selection.source import SourceFile
from mpitrain.data.selection.variable_access import find_access, find_main, read_part, time_variable, turned
from mpitrain.data.units import counts_from_a_date, find_conversion
from mpitrain.errors import DataError

_SAME_PLACE_DEGREES = 1e-3
# The first day of the Gregorian calendar, in days since 1970-01-01: from then on the proleptic calendar is the same.
_FIRST_GREGORIAN_DAY = -141427.0
_EVERYTHING = slice(None)
Arrays = Mapping[str, npt.NDArray[Any]]
Places = dict[str, tuple[str, npt.NDArray[Any]]]
"""Name and values of latitude and longitude, by quantity."""


@dataclass(frozen=True)
class GridFile:
    """Properties and static variables of one opened file of a grid.

    `path` is shown in messages; it names all files that are read as one. `units` are those in which variables are read.
    `statics` are the decoded variables without time, in the samples' type, `exact_statics` the same without rounding.
    `places` are latitude and longitude, if variables have lags. `lines` are notices that name the file; `common_lines`
    do not, and are reported once, for the first file that has them.
    """

    path: Path
    record: SourceFile
    grid_shape: tuple[int, int]
    units: Mapping[str, str]
    statics: Arrays
    exact_statics: Arrays
    times: DecodedTimes | None
    places: Places
    lines: tuple[str, ...]
    common_lines: tuple[str, ...]


def open_grid_file(
    plan: GridPlan, description: FileDescription, paths: tuple[Path, ...], first_time: int, first: GridFile | None
) -> GridFile:
    """Return the properties of an open file; `paths` are its own path and those of the files read with it as one.

    Its first time level has the number `first_time`. Raises DataError if it does not agree with the `first` file.
    """
    file, status = description.file, [path.stat() for path in paths]
    if first is not None and not plan.has_targets and not has_none(plan.target_names, description):
        raise DataError(
            f"{file.path}: has a target that {first.path} lacks (of {listed(plan.target_names)}); predict for files "
            "with targets and for files without targets separately"
        )
    access, common_lines = find_all(plan, description)
    time = time_variable(description, access, plan.leading_references)
    common_lines += notes_of_file(file, [*(one.info for one in access.values()), *([] if time is None else [time])])
    units = {**(first.units if first is not None else {}), **plan.selection.units}
    lines = [*_turn_longitudes(plan, file, access), *_convert_units(plan, file, access, units)]
    num_times, grid_shape = _checked_shapes(plan, file, access, first)
    exact = _read_statics(plan, file, access)
    statics = {name: values.astype(plan.selection.dtype) for name, values in exact.items()}
    if first is not None:
        _check_statics(plan, file, access, statics, first)
    times = _read_times(plan, file, time, access, first)
    if times is not None and plan.naming.clocks:
        lines += _notes_of_means(time, file, times.are_interval_middles, first)
    is_table, has_lags = grid_shape == (1, 1), any(one.lag for one in access.values())
    stamps = None if is_table or time is None or len(time.shape) > 1 else read_stored_times(time, file)
    record, *beside = (
        SourceFile(path, one.st_size, one.st_mtime_ns, 0, 0) for path, one in zip(paths, status, strict=True)
    )
    record = replace(
        record, num_times=num_times, first_time=first_time, variables=access,
        times=None if times is None else times.days,
        reading=plan.selection.reading, time=time, stamps=stamps, beside=tuple(beside),
        taken=getattr(file, "taken", (None,)),
    )  # fmt: skip
    return GridFile(
        path=file.path,
        record=record,
        grid_shape=grid_shape,
        units={name: units.get(name) or one.info.units for name, one in access.items()},
        statics=statics,
        exact_statics=exact,
        times=times,
        places=_places(plan, description, access, grid_shape) if has_lags else {},
        lines=tuple(lines),
        common_lines=tuple(common_lines),
    )


def _convert_units(plan: GridPlan, file: FieldFile, access: Access, units: Mapping[str, str]) -> Iterator[str]:
    """Set the conversion of each variable in `access` to the wanted units; yield a notice for each.

    Raises DataError if units differ and cannot be converted.
    """
    for name in plan.main_references:
        info, wanted = access[name].info, units.get(name)
        if wanted is None:
            notice = odd_units(name, info, file.path)
            yield from [notice] if notice else []
            continue
        subject = f"{file.path}: variable '{info.name}'"
        if bool(info.units) != bool(wanted):
            has = f"has units '{info.units}'" if info.units else "has no units"
            yield f"{subject} {has}, expected '{wanted}'; its values are used without conversion"
        conversion = find_conversion(info.units, wanted, subject)
        if conversion is not None:
            access[name] = replace(access[name], conversion=conversion)
            yield f"{subject} is converted from '{info.units}' to '{wanted}'"


def _turn_longitudes(plan: GridPlan, file: FieldFile, access: Access) -> Iterator[str]:
    """Set the range towards which longitudes are shifted, that of the training data; yield a notice for each variable.

    There is no notice for a variable without time whose values all lie in the range. Values that vary in time are not
    read here, so that the notice for them is given in any case.
    """
    for name, between in plan.selection.longitude_ranges.items():
        one = access.get(name)
        if one is None or not is_called(one.info, LONGITUDE):
            continue
        if one.axes.time is None:
            values = one.decode(read_part(file, one, _EVERYTHING, _EVERYTHING))
            # Ignore differences by rounding: the range in single precision may exclude the file's own ends.
            if not np.any(np.abs(turned(values, between, one.longitude_period) - values) > one.longitude_period / 2):
                continue
        access[name] = replace(one, turn=between)
        yield (
            f"{file.path}: longitudes '{name}' outside {between[0]:.6g} to {between[1]:.6g}, the range that the "
            "network was trained on, are shifted by whole turns towards it"
        )


def _checked_shapes(
    plan: GridPlan, file: FieldFile, access: Access, first: GridFile | None
) -> tuple[int, tuple[int, int]]:
    """Return a file's numbers of time levels, and of rows and columns. Raises DataError if its variables do not fit."""
    leading = [access[name] for name in plan.leading_references]
    main = max(leading, key=lambda one: one.shape[1] * one.shape[2])
    # The rows of a table are the rows of the targets.
    of_times = leading if leading[0].axes.are_rows else [access[name] for name in plan.main_references]
    num_times = max(one.shape[0] for one in of_times)
    # A target may lack an axis that another target has.
    rows, columns = (max(one.shape[axis] for one in leading) for axis in (1, 2))
    grid_shape = (rows, columns) if plan.has_targets else main.shape[1:]
    check_claims((one.info for one in access.values()), file.path)
    for one in access.values():
        if 0 in one.shape:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has shape {one.info.shape}: a dimension has length 0; remove "
                "this file from data.data_path, or wait until it is written"
            )
        if not one.info.is_numeric:
            kind = "text" if one.info.is_text else one.info.dtype
            problem = file.note_of(one.info.name) or f"holds {kind}, expected numbers; name another variable"
            raise DataError(f"{file.path}: variable '{one.info.name}' {problem}")
        fits = all(size in (1, full) for size, full in zip(one.shape, (num_times, *grid_shape), strict=True))
        if not fits:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has (time, rows, columns) {one.shape}, "
                f"expected {(num_times, *grid_shape)} as '{main.info.name}' has; use variables of one grid"
            )
    if first is not None and grid_shape != first.grid_shape:
        # The number of reports or stations may differ from file to file.
        joining = ", or concatenate the samples into one file, as ncrcat does"
        raise DataError(
            f"{file.path}: its grid of {_shape_text(grid_shape)} differs from that of {first.path}, "
            f"{_shape_text(first.grid_shape)}; use files of one grid{joining if 1 in grid_shape else ''}"
        )
    return num_times, grid_shape


def _shape_text(grid_shape: tuple[int, int]) -> str:
    return f"{grid_shape[0]} rows x {grid_shape[1]} columns"


def _read_statics(plan: GridPlan, file: FieldFile, access: Access) -> Arrays:
    """Return the decoded variables without time; of tables, and of files without any time, only those of the grid."""
    axes = [access[name].axes for name in plan.main_references]
    has_time = any(one.time is not None and not one.are_rows for one in axes)
    return {
        name: one.decode(read_part(file, one, _EVERYTHING, _EVERYTHING))
        for name, one in access.items()
        if one.axes.time is None and (has_time or name in plan.coordinates)
    }


def _check_statics(plan: GridPlan, file: FieldFile, access: Access, statics: Arrays, first: GridFile) -> None:
    """Raise DataError if variables without time, which each file repeats, differ from those of the first file."""
    for name, expected in first.statics.items():
        found = statics.get(name)
        if (
            found is None
            or found.shape != expected.shape
            or not np.allclose(found, expected, 1e-6, 1e-5, equal_nan=True)
        ):
            subject = "the grid" if name in plan.coordinates else "it has no time, and"
            raise DataError(
                f"{file.path}: variable '{access[name].info.name}' differs from that of {first.path}: {subject} must "
                "be the same in all files; use files of one grid"
            )


def _read_times(
    plan: GridPlan, file: FieldFile, info: VariableInfo | None, access: Access, first: GridFile | None
) -> DecodedTimes | None:
    """Return the decoded times of a file from its time variable; None if the settings do not need them.

    Raises DataError if the times cannot be decoded, or if their calendar differs from that of the first file.
    """
    lags = any(one.lag for one in access.values())
    if not plan.naming.clocks and (not lags or info is None or not counts_from_a_date(info.units)):
        return None  # lags, if there are any, count levels
    found = read_times(info, file)
    if first is None or first.times is None or first.times.calendar == found.calendar:
        return found
    both = {found.calendar, first.times.calendar}
    earliest = min(float(np.nanmin(one.days, initial=0.0)) for one in (found, first.times))
    if both != GREGORIAN or earliest < _FIRST_GREGORIAN_DAY:
        raise DataError(
            f"{file.path}: its calendar is '{found.calendar}', that of {first.path} is '{first.times.calendar}'; use "
            "files of one calendar"
        )
    return found


def _notes_of_means(
    info: VariableInfo | None, file: FieldFile, has_means: bool, first: GridFile | None
) -> Iterator[str]:
    """Yield a notice if times are replaced by the middles of averaging intervals, or if the first file differs in that.

    `has_means`: the times of this file are replaced.
    """
    others = None if first is None or first.times is None else first.times.are_interval_middles
    if first is None and has_means and info is not None:
        yield (
            f"{file.path}: {info.name} is at an end of each averaging interval: months, days and times of conditions "
            f"are those of the middles, according to {info.text('bounds') or info.text('climatology')}"
        )
    elif first is not None and others not in (None, has_means):
        own, other = (
            ("middles of averaging intervals", "stored times")
            if has_means
            else ("stored times", "middles of averaging intervals")
        )
        yield (
            f"{file.path}: months, days and times of conditions are those of the {own}, in {first.path} those of the "
            f"{other}; compare the bounds and cell_methods of both"
        )


def _places(plan: GridPlan, description: FileDescription, access: Access, grid_shape: tuple[int, int]) -> Places:
    """Return names and values of latitude and longitude of a grid, without those that are unknown or vary in time."""
    found: Places = {}
    main = find_main(description, plan.leading_references)
    leading = [access[name] for name in plan.leading_references]
    for quantity in (LATITUDE, LONGITUDE):
        try:
            place = find_access(description, description.find_quantity(quantity, main), True)
        except DataError:
            continue
        one = on_samples(description, place, leading) if plan.selection.has_named_dimensions else place
        if one is None or one.axes.time is not None or not one.info.is_numeric:
            continue
        if all(size in (1, whole) for size, whole in zip(one.shape[1:], grid_shape, strict=True)):
            values = one.decode(read_part(description.file, one, _EVERYTHING, _EVERYTHING))
            found[quantity] = one.info.name, values
    return found


def check_places(file: GridFile, known: dict[str, tuple[Path, npt.NDArray[Any]]]) -> None:
    """Raise DataError if the locations of a file differ from those of an earlier one: lagged values would not match.

    `known` are the coordinates of the first file of a series that has them, by quantity; missing ones are added from
    this file.
    """
    for quantity, (name, values) in file.places.items():
        path, others = known.setdefault(quantity, (file.path, values))
        if values.shape != others.shape or not (np.abs(_apart(values, others)) < _SAME_PLACE_DEGREES).all():
            raise DataError(
                f"{file.path}: its '{name}' differs from that of {path}, but lagged variables need the same locations "
                "in all files; use files of one grid, or train on each file separately"
            )


def _apart(values: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the difference of coordinates in degrees, without whole turns; 0 where both are missing."""
    difference = np.mod(values.astype(np.float64) - others + 180.0, 360.0) - 180.0
    return np.where(np.isnan(values) & np.isnan(others), 0.0, difference)
