"""Where the values of lagged variables come from: a lag is a step of time, or of rows where the settings say so.

T  time levels of all files
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.times import Times, dates_at
from mpitrain.errors import DataError

Levels = npt.NDArray[np.int64]
_DAY_MS, _DAY_S = 86_400_000.0, 86_400.0
_UNITS_S = ((_DAY_S, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"), (0.0, "second"))
_MONTH_DAYS, _SHORTEST_MONTH_DAYS, _MONTHS_DIFFER_DAYS, _MONTHS_A_YEAR = 30.4375, 28.0, 3.0, 12
# Of a step: times are stamped by clocks, and a few minutes late.
_NEAR, _SAME = 0.1, 1e-6


@dataclass(frozen=True)
class Lag:
    """By how many steps a variable is later (+) or earlier (-); steps of time, or of rows whatever their times are."""

    steps: int
    by_row: bool = False


@dataclass(frozen=True)
class TimeStep:
    """The most frequent step between times: so many months of the calendar, or, where that is 0, days."""

    days: float
    months: int = 0

    @property
    def words(self) -> str:
        """The step for people."""
        if self.months:
            return "month" if self.months == 1 else "year" if self.months == _MONTHS_A_YEAR else f"{self.months} months"
        seconds = round(self.days * _DAY_S, 3)
        size_s, unit = next(one for one in _UNITS_S if seconds >= one[0])
        return unit if seconds == size_s else f"{seconds / (size_s or 1.0):.6g} {unit}s"


def find_step(times: Times, calendar: str) -> TimeStep | None:
    """Return the most frequent step between times (T,), days in a calendar, in any order; None of fewer than two."""
    distinct = np.unique(times[np.isfinite(times)])
    steps_ms = np.round(np.diff(distinct) * _DAY_MS)
    sizes, counts = np.unique(steps_ms[steps_ms > 0], return_counts=True)
    if not len(sizes):
        return None
    days = float(sizes[np.argmax(counts)]) / _DAY_MS
    months = round(days / _MONTH_DAYS)
    if days >= _SHORTEST_MONTH_DAYS and abs(days - months * _MONTH_DAYS) < _MONTHS_DIFFER_DAYS:
        between = np.diff(_months(distinct, calendar))
        if (between > 0).all() and (between % months == 0).all():
            return TimeStep(days, months)
    return TimeStep(days)


def _months(times: Times, calendar: str) -> Times:
    """Return the numbers of the months, counted from the year 0, of times none of which is missing."""
    return np.array([date.year * _MONTHS_A_YEAR + date.month - 1 for date in dates_at(times, calendar)], dtype=float)


def levels_at(times: Times, step: TimeStep, steps: int, calendar: str) -> Levels:
    """Return the levels (T,) that are so many steps later, among those of times (T,) in any order; -1 where none is.

    Raises ValueError where a time is there more than once.
    """
    known = np.flatnonzero(np.isfinite(times))
    keys = np.full(len(times), np.nan)
    keys[known] = _months(times[known], calendar) if step.months else times[known]
    size, near = (float(step.months), 0.0) if step.months else (step.days, _NEAR * step.days)
    found = np.full(len(times), -1, dtype=np.int64)
    if not len(known):
        return found
    order = known[np.argsort(keys[known], kind="stable")]
    in_order = keys[order]
    if (np.diff(in_order) <= _SAME * size).any():
        raise ValueError("a time is there more than once")
    wanted = keys[known] + steps * size
    after = np.minimum(np.searchsorted(in_order, wanted), len(order) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(in_order[before] - wanted) < np.abs(in_order[after] - wanted), before, after)
    found[known] = np.where(np.abs(in_order[nearest] - wanted) <= near, order[nearest], -1)
    return found


@dataclass(frozen=True)
class Series:
    """Time levels that belong together, from `first` on: those of the files trained on, or of those held out."""

    first: int
    times: Times | None
    num_levels: int
    path: Path


def lagged_levels(
    series: Sequence[Series], lags: Iterable[Lag], calendar: str, by_times: bool
) -> tuple[dict[Lag, Levels], list[str]]:
    """Return the level (T,) of the source from which each lag takes its values, -1 for none, and lines to say.

    A lag of time counts steps of time where all times are known and `by_times`, else levels in the order of the files.
    Raises DataError where times that lags need are there more than once.
    """
    of_times = by_times and all(one.times is not None for one in series)
    steps = [None if one.times is None or not of_times else find_step(one.times, calendar) for one in series]
    found: dict[Lag, Levels] = {}
    notices: list[str] = []
    for lag in lags:
        parts = []
        for one, step in zip(series, steps, strict=True):
            if of_times and not lag.by_row and one.times is not None:
                levels = _by_time(one, steps[0] or step, lag, calendar)
                notices += _notices(one, levels, step, lag)
            else:
                levels = _by_level(one, lag)
            parts.append(np.where(levels < 0, -1, levels + one.first))
        found[lag] = np.concatenate(parts)
    return found, notices


def _by_level(series: Series, lag: Lag) -> Levels:
    levels = np.arange(series.num_levels, dtype=np.int64) + lag.steps
    return np.where((levels < 0) | (levels >= series.num_levels), -1, levels)


def _by_time(series: Series, step: TimeStep | None, lag: Lag, calendar: str) -> Levels:
    assert series.times is not None
    if step is None:
        return np.full(series.num_levels, -1, dtype=np.int64)
    try:
        return levels_at(series.times, step, lag.steps, calendar)
    except ValueError as error:
        raise DataError(
            f"{series.path}: {error}, and lagged variables are those of the time before; give each time once, or "
            f"x[row{lag.steps:+d}] for the value of the row before, whatever its time is"
        ) from error


def _notices(series: Series, levels: Levels, step: TimeStep | None, lag: Lag) -> Iterator[str]:
    """Yield a line where levels lack an earlier or later one that is not beyond the first and the last."""
    assert series.times is not None
    if step is None:
        return
    first, last = np.nanmin(series.times), np.nanmax(series.times)
    wanted = series.times + lag.steps * step.days
    num_missing = int(((levels < 0) & (wanted >= first) & (wanted <= last)).sum())
    num_unknown = int(np.isnan(series.times).sum())
    what = f"{series.path}: [time{lag.steps:+d}] leaves out"
    if num_missing:
        count, side = abs(lag.steps), "before" if lag.steps < 0 else "after"
        yield (
            f"{what} {num_missing} of {series.num_levels} times, {count} step{'s' if count > 1 else ''} ({step.words}) "
            f"{side} which there is none; [row{lag.steps:+d}] takes the row {side}, whatever its time is"
        )
    if num_unknown:
        yield f"{what} {num_unknown} of {series.num_levels} rows, which have no time"
