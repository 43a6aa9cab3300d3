"""The time levels of all files in two series: those of the training files, and those of the held-out files.

T  time levels of all files
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import STATION, FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE
from mpitrain.data.describe.times import ranks_of_stored_times
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo, texts_of
from mpitrain.data.selection.settings import Selection
from mpitrain.data.selection.source import OpenFiles, SourceFile
from mpitrain.data.selection.times.lags import Lag, Levels, Series, find_step, lagged_levels, show_step
from mpitrain.data.selection.times.repeated import find_repeated

# Steps count as different beyond this factor, which is larger than between months.
_OTHER_STEP = 1.2
_FEWEST_ROWS_A_PLACE = 3
_ROLES = ("timeseries_id", "trajectory_id")  # CF 9.5
_CALLED = re.compile(
    r"(stations?|site|platform|buoy|wmo|trajectory)(_?(id|name|code|nr|no|number))?|stationsname|mmsi|id"
    r"|(gauge|float|drifter|ship|tower|lake|basin)_(id|name|code|nr|no|number)",
    re.IGNORECASE,
)
_DEGREES = "{:.3f} {:.3f}".format


@dataclass(frozen=True)
class TimeLevels:
    """The time levels of all files: first of the `num_trained_on` training files, then of the held-out files.

    `is_table`: levels are the rows of a table, possibly at many locations.
    """

    selection: Selection
    records: tuple[SourceFile, ...]
    num_trained_on: int
    is_table: bool

    @property
    def num_levels(self) -> int:
        """The number of levels of all files."""
        return sum(record.num_times for record in self.records)

    @property
    def series(self) -> list[tuple[SourceFile, ...]]:
        """The training files, and the held-out files if there are any."""
        parts = self.records[: self.num_trained_on], self.records[self.num_trained_on :]
        return [part for part in parts if part]

    def stations(self) -> list[StationsOfRows]:
        """Return the stations of the rows of each file."""
        with closing(OpenFiles()) as handles:
            described = ((self.selection.describe(handles.get(one)), one.num_times) for one in self.records)
            return [stations_of_rows(*one) for one in described]


def in_order_of_time(levels: TimeLevels) -> tuple[TimeLevels, list[str]]:
    """Return the levels with the files of each series in order of time, and a line for a series that is reordered.

    The order is kept if a file has no times, if two files share a time or overlap, as members of an ensemble do, and
    with `data.rules=1`.
    """
    if levels.is_table or not levels.selection.has_named_dimensions or len(levels.records) < 2:
        return levels, []
    stamps = ((one.stamps, one.num_times) for one in levels.records)
    known = [one for one, count in stamps if one is not None and np.isfinite(one.values).sum() == count > 0]
    ends = [replace(one, values=np.array([one.values.min(), one.values.max()])) for one in known]
    ranks = ranks_of_stored_times(ends, [2] * len(ends)) if len(ends) == len(levels.records) else None
    if ranks is None:
        return levels, []
    ends_of = {one.path: tuple(pair) for one, pair in zip(levels.records, ranks.reshape(-1, 2).tolist(), strict=True)}
    records, lines = list[SourceFile](), list[str]()
    for files in levels.series:
        in_order = sorted(files, key=lambda one: ends_of[one.path])
        if any(ends_of[one.path][1] >= ends_of[after.path][0] for one, after in pairwise(in_order)):
            in_order = list(files)
        moved = next((one for one, other in zip(files, in_order, strict=True) if one is not other), None)
        if moved is not None:
            lines.append(f"{moved.path}: the files are not given in order of time; they are read in order of time")
        records += in_order
    starts = np.cumsum([0, *(one.num_times for one in records[:-1])]).tolist()
    ordered = tuple(replace(one, first_time=start) for one, start in zip(records, starts, strict=True))
    return replace(levels, records=ordered), lines


def find_lagged(levels: TimeLevels, repeats: Levels | None) -> tuple[dict[Lag, Levels], float | None, list[str]]:
    """Return the levels from which each lag takes its values, the step in days, and notices.

    The step is 0 if lags count levels, and None without lags. The training files and the held-out files are separate
    series; the default of `data.lag_step_days` is the step of the first series. No value is taken from levels that
    repeat others.
    """
    lags = dict.fromkeys(one.lag for record in levels.records for one in record.variables.values() if one.lag)
    if not lags:
        return {}, None, []
    by_time = any(not lag.by_row for lag in lags)
    stations, lines = _numbers_of_stations(levels) if by_time else (np.zeros(levels.num_levels, dtype=np.int64), [])
    series = [_series(part, repeats, stations) for part in levels.series]
    step_days, of_time, requested = 0.0, [lag for lag in lags if not lag.by_row], levels.selection.lag_step_days
    if of_time and levels.selection.has_named_dimensions:
        own = None if series[0].times is None else find_step(series[0].times, series[0].stations)
        step_days = (own or 0.0) if requested is None else requested
        lines += _notes_of_steps(levels, series, f"[{of_time[0]}] counts", step_days, own)
    found, more = lagged_levels(series, lags, step_days)
    return found, step_days, [*lines, *more]


def find_repeats(levels: TimeLevels) -> tuple[Levels | None, list[str]]:
    """Return the level (T,) that each time level repeats, None if no level does, and notices.

    None for a table: rows with equal values may belong to different locations, depths or species.
    """
    if not levels.selection.has_named_dimensions or levels.is_table:
        return None, []
    return find_repeated(levels.records, levels.num_trained_on)


def _notes_of_steps(
    levels: TimeLevels, series: Sequence[Series], counting: str, step_days: float, own_days: float | None
) -> Iterator[str]:
    """Yield a line if a lag of time counts levels, or steps that differ from those of the data."""
    counts_levels = f"{counting} {'rows' if levels.records[0].are_rows else 'time levels'} in the order of the files"
    is_set = levels.selection.lag_step_days is not None
    for one in series:
        has_some = any(record.times is not None or record.are_rows for record in levels.records)
        if one.times is None and (step_days or has_some):
            have_none = all(record.times is None for record in levels.records)
            yield f"{one.paths[0]}: {counts_levels}: {'they have no' if have_none else 'not all of them have'} times"
        elif one.times is not None and not step_days and one is series[0]:
            reason = "data.lag_step_days=0" if is_set else "its times have no regular step; set data.lag_step_days"
            yield f"{one.paths[0]}: {counts_levels}: {reason}"
    if own_days and step_days and not step_days / _OTHER_STEP < own_days < step_days * _OTHER_STEP:
        own, used = show_step(own_days), show_step(step_days)
        yield f"{series[0].paths[0]}: {counting} steps of {used} (data.lag_step_days); the step of its times is {own}"


def _numbers_of_stations(levels: TimeLevels) -> tuple[Levels, list[str]]:
    """Return the station number (T,) of each level, and notices; all 0 if there is one station, or none is known.

    Stations are identified by the variables of `stations_of_rows`. Without these, locations serve as stations if a time
    occurs at several locations, at none of them twice, and locations have enough rows.
    """
    of_one = np.zeros(levels.num_levels, dtype=np.int64), list[str]()
    if not levels.is_table or not levels.selection.has_named_dimensions:
        return of_one
    stations = levels.stations()
    labels, places = ([getattr(one, key) for one in stations] for key in ("stations", "places"))
    if all(one is not None for one in labels):
        names, by = np.concatenate(labels), stations[0].told_by
    elif all(one is not None for one in places) and all(record.times is not None for record in levels.records):
        names, by = np.concatenate(places), "their locations"
        times = np.concatenate([np.asarray(record.times) for record in levels.records])
        pairs = np.stack([np.unique(names, return_inverse=True)[1], times], axis=1)[np.isfinite(times)]
        is_moving = len(np.unique(names)) * _FEWEST_ROWS_A_PLACE > len(names)
        if is_moving or len(np.unique(pairs[:, 1])) == len(pairs) or len(np.unique(pairs, axis=0)) < len(pairs):
            return of_one
    else:
        return of_one
    numbers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if not numbers.any():
        return of_one
    return numbers, [f"{levels.records[0].path}: lags of time are counted at each station, identified by {by}"]


def _series(records: Sequence[SourceFile], repeats: Levels | None, stations: Levels) -> Series:
    times = [record.times for record in records if record.times is not None and len(record.times) == record.num_times]
    known = np.concatenate(times) if len(times) == len(records) else None
    first, num_levels = records[0].first_time, sum(record.num_times for record in records)
    is_repeat = np.zeros(num_levels, dtype=bool) if repeats is None else repeats[first : first + num_levels] >= 0
    paths, firsts = tuple(record.path for record in records), tuple(record.first_time for record in records)
    return Series(first, known, num_levels, paths, firsts, is_repeat, stations[first : first + num_levels])


class StationsOfRows(NamedTuple):
    """Station (N,) and location (N,) of each row as text, None if unknown; `told_by` names the stations' variables."""

    stations: npt.NDArray[Any] | None = None
    told_by: str = ""
    places: npt.NDArray[Any] | None = None


def stations_of_rows(description: FileDescription, num_rows: int) -> StationsOfRows:
    """Return the station and the location of each row.

    Stations are in the variable that the user names, or in one with CF's `cf_role`, or in one with a usual name.
    Variables with numbers that are not integers, or with a usual name and units, are measurements, not stations.
    """
    file = description.file
    along = [one for one in file.variables.values() if one.shape[:1] == (num_rows,)]
    named = description.variable_named(STATION)
    labels = [one for one in along if named is not None and one.name == named.name]
    labels = labels or [one for one in along if one.text("cf_role") in _ROLES]
    labels = labels or [one for one in along if _CALLED.fullmatch(one.short_name) is not None and not one.units]
    found = [(one.name, names) for one in labels if (names := _names(file, one)) is not None]
    places = [
        one
        for quantity in (LATITUDE, LONGITUDE)
        for one in along
        if len(one.shape) == 1 and one.is_numeric and description.is_quantity(one.name, quantity)
    ]
    at = None
    if len(places) == len((LATITUDE, LONGITUDE)):
        both = (read_column(file, one) for one in places)
        at = np.array([_DEGREES(*one) for one in zip(*both, strict=True)])
    if not found:
        return StationsOfRows(places=at)
    together = np.array([" ".join(names) for names in zip(*(names for _, names in found), strict=True)])
    return StationsOfRows(together, ", ".join(f"'{name}'" for name, _ in found), at)


def _names(file: FieldFile, info: VariableInfo) -> npt.NDArray[Any] | None:
    """Return the values of a variable (N,) as text; None if all are missing, or numbers that are not all integers."""
    if info.is_numeric:
        values = read_column(file, info) if len(info.shape) == 1 else np.array([0.5])
        known = np.isfinite(values)
        return values.astype("U") if known.any() and (values == np.round(values))[known].all() else None
    texts = texts_of(file.read_stored(info.name, (slice(None),) * len(info.shape))).astype("U")
    return texts if np.char.strip(texts).any() else None
