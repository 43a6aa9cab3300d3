"""The time levels of all files as series: of the files trained on, and of those held out.

T  time levels of all files
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.stations import StationsOfRows, stations_of_rows
from mpitrain.data.selection.grid_files import Grids
from mpitrain.data.selection.source import SourceFile
from mpitrain.data.selection.times.lags import Lag, Levels, Series, find_step, lagged_levels, show_step
from mpitrain.data.selection.times.repeated import find_repeated
from mpitrain.data.selection.variable_access import VariableAccess

# Steps that differ by more than months do are others.
_OTHER_STEP = 1.2
_FEWEST_ROWS_A_PLACE = 3


def find_lagged(grids: Grids, repeats: Levels | None) -> tuple[dict[Lag, Levels], float | None]:
    """Return where lags take their values from, and the step in days, 0 where they count levels; None without lags.

    The files trained on, and those held out, are series of their own; the step is that of the first, unless
    `data.lag_step_days` tells it. No value is taken from levels that repeat others.
    """
    lags = dict.fromkeys(one.lag for record in grids.records for one in record.variables.values() if one.lag)
    if not lags:
        return {}, None
    records, num_trained_on = grids.records, grids.num_trained_on
    stations = _numbers_of_stations(grids)
    series = [_series(part, repeats, stations) for part in (records[:num_trained_on], records[num_trained_on:]) if part]
    step_days, of_time = 0.0, [lag for lag in lags if not lag.by_row]
    if of_time and grids.selection.counts_times:
        own = None if series[0].times is None else find_step(series[0].times, series[0].stations)
        asked = grids.selection.lag_step_days
        step_days = (own or 0.0) if asked is None else asked
        grids.notices += _notes_of_steps(grids, series, f"[{of_time[0]}] counts", step_days, own)
    found, notices = lagged_levels(series, lags, step_days)
    grids.notices += notices
    return found, step_days


def find_repeats(grids: Grids) -> Levels | None:
    """Return the level (T,) that each time level repeats; None of a table, whose rows may be of several places."""
    if not grids.selection.counts_times or grids.grid_shape == (1, 1):
        return None
    repeats, notices = find_repeated(grids.records, grids.num_trained_on)
    grids.notices += notices
    return repeats


def _notes_of_steps(
    grids: Grids, series: Sequence[Series], what: str, step_days: float, own_days: float | None
) -> Iterator[str]:
    """Yield a line where a lag of time counts levels though times are known, or other steps than those of the data."""
    counts_levels = f"{what} time levels in the order of the files"
    is_asked = grids.selection.lag_step_days is not None
    for one in series:
        if one.times is None and (step_days or any(record.times is not None for record in grids.records)):
            yield f"{one.paths[0]}: {counts_levels}: not all of them have times"
        elif one.times is not None and not step_days and one is series[0]:
            reason = (
                "data.lag_step_days=0" if is_asked else "its times have no usual step; data.lag_step_days names one"
            )
            yield f"{one.paths[0]}: {counts_levels}: {reason}"
    if own_days and step_days and not step_days / _OTHER_STEP < own_days < step_days * _OTHER_STEP:
        own, asked = show_step(own_days), show_step(step_days)
        yield f"{series[0].paths[0]}: {what} steps of {asked} (data.lag_step_days); those of its times are {own}"


def read_stations(
    grids: Grids, description: FileDescription, access: Mapping[str, VariableAccess], num_rows: int
) -> None:  # fmt: skip
    """Note which station each row of a table is of, where variables have lags of time."""
    has_lags = any(one.lag is not None and not one.lag.by_row for one in access.values())
    is_table = has_lags and grids.grid_shape == (1, 1) and grids.selection.counts_times
    grids.stations.append(stations_of_rows(description, num_rows) if is_table else StationsOfRows())


def _numbers_of_stations(grids: Grids) -> Levels:
    """Return the number (T,) of each level's station, by what all files tell; all 0 where there is one.

    Places stand for stations where a time is there more than once, and no place has it twice.
    """
    num_levels = sum(record.num_times for record in grids.records)
    told, places = ([getattr(one, key) for one in grids.stations] for key in ("stations", "places"))
    if all(one is not None for one in told):
        names, by = np.concatenate(told), grids.stations[0].told_by
    elif all(one is not None for one in places) and all(record.times is not None for record in grids.records):
        names, by = np.concatenate(places), "their places"
        times = np.concatenate([np.asarray(record.times) for record in grids.records])
        pairs = np.stack([np.unique(names, return_inverse=True)[1], times], axis=1)[np.isfinite(times)]
        is_moving = len(np.unique(names)) * _FEWEST_ROWS_A_PLACE > len(names)
        if is_moving or len(np.unique(pairs[:, 1])) == len(pairs) or len(np.unique(pairs, axis=0)) < len(pairs):
            return np.zeros(num_levels, dtype=np.int64)
    else:
        return np.zeros(num_levels, dtype=np.int64)
    numbers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    if numbers.any():
        grids.notices.append(f"{grids.records[0].path}: lags of time are those of each station, by {by}")
    return numbers


def _series(records: Sequence[SourceFile], repeats: Levels | None, stations: Levels) -> Series:
    times = [record.times for record in records if record.times is not None and len(record.times) == record.num_times]
    known = np.concatenate(times) if len(times) == len(records) else None
    first, num_levels = records[0].first_time, sum(record.num_times for record in records)
    is_repeat = np.zeros(num_levels, dtype=bool) if repeats is None else repeats[first : first + num_levels] >= 0
    paths, firsts = tuple(record.path for record in records), tuple(record.first_time for record in records)
    return Series(first, known, num_levels, paths, firsts, is_repeat, stations[first : first + num_levels])
