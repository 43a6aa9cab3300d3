"""The levels from which lagged variables take their values: a lag counts steps of time, or rows if the settings say so.

T  time levels of all files
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.times import Times
from mpitrain.errors import DataError

Levels = npt.NDArray[np.int64]
_DAY_S = 86_400.0
_UNITS_S = ((_DAY_S, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"), (1e-3, "millisecond"))
_MONTH_DAYS, _YEAR_DAYS = (30.2, 30.7), (364.8, 366.2)
# Steps within a factor of _ALIKE of one step form a group of similar steps, such as those between months; a value may
# be taken up to _NEAR of a step away from the wanted time.
_ALIKE, _NEAR, _SAME = 1.2, 0.25, 1e-6
_MOST_EQUAL, _FEWEST_ALIKE = 0.75, 0.5


@dataclass(frozen=True)
class Lag:
    """The number of steps by which a variable is later (+) or earlier (-): time steps, or rows if `by_row`."""

    steps: int
    by_row: bool = False

    def __str__(self) -> str:
        """Return the lag as settings spell it."""
        return f"{'row' if self.by_row else 'time'}{self.steps:+d}"


def find_step(times: Times, stations: Levels | None = None) -> float | None:
    """Return the most frequent step in days between times (T,), in any order, within each of the `stations` (T,).

    If fewer than three quarters of the steps are equal, it is the mean of those within a factor of 1.2 of the median
    of the largest group of similar steps, as for months or rounded times. None for fewer than two times, or if these
    are less than half of the steps.
    """
    known = np.isfinite(times)
    of = np.zeros(len(times), dtype=np.int64) if stations is None else stations
    order = np.lexsort((times[known], of[known]))
    steps = np.diff(times[known][order])[np.diff(of[known][order]) == 0]
    steps = np.sort(steps[steps > 0])
    if not len(steps):
        return None
    equal, alike = _most_within(steps, 1 + _SAME), _most_within(steps, _ALIKE)
    if len(equal) >= _MOST_EQUAL * len(steps):
        return float(equal.mean())
    middle = float(np.median(alike))
    alike = steps[(steps > middle / _ALIKE) & (steps < middle * _ALIKE)]
    return float(alike.mean()) if len(alike) >= _FEWEST_ALIKE * len(steps) else None


def _most_within(steps: Times, factor: float) -> Times:
    """Return the largest group of the sorted steps that lie within a factor of one of them."""
    first, stop = np.searchsorted(steps, steps / factor), np.searchsorted(steps, steps * factor, side="right")
    most = int(np.argmax(stop - first))
    return steps[first[most] : stop[most]]


def show_step(days: float) -> str:
    """Return a step, given in days, as text for messages."""
    for name, (low, high) in (("1 month", _MONTH_DAYS), ("1 year", _YEAR_DAYS)):
        if low <= days <= high:
            return name
    seconds = days * _DAY_S
    size_s, unit = next((one for one in _UNITS_S if seconds >= one[0] * (1 - _SAME)), _UNITS_S[-1])
    count = f"{seconds / size_s:.4g}"
    return f"{count} {unit}{'' if count == '1' else 's'}"


@dataclass(frozen=True)
class Series:
    """The time levels of the training files or of the held-out files; `first` is the number of the first level.

    `times` are days, None if unknown. `paths` are the files, `firsts` their first levels, `is_repeat` (T,) marks levels
    that repeat others, and `stations` (T,) are the numbers of the levels' stations.
    """

    first: int
    times: Times | None
    num_levels: int
    paths: tuple[Path, ...]
    firsts: tuple[int, ...]
    is_repeat: npt.NDArray[np.bool_]
    stations: Levels

    def path_of(self, level: int) -> Path:
        """Return the file that holds a level of the series."""
        return self.paths[int(np.searchsorted(self.firsts, level + self.first, side="right")) - 1]


def lagged_levels(
    series: Sequence[Series], lags: Iterable[Lag], step_days: float
) -> tuple[dict[Lag, Levels], list[str]]:
    """Return the levels (T,) of the source from which each lag takes its values, -1 for none, and notices.

    A lag of time counts steps of `step_days`; if that is 0, or a series has no times, it counts levels in the order of
    the files. Raises DataError if a time that lags need occurs more than once.
    """
    found: dict[Lag, Levels] = {}
    notices: list[str] = []
    for lag in lags:
        parts = []
        for one in series:
            if one.times is None or not step_days or lag.by_row:
                levels = _by_level(one, lag)
            else:
                levels = _levels_at(one, one.times, step_days, lag)
                notices += _notices(one, one.times, levels, step_days, lag)
            parts.append(np.where(levels < 0, -1, levels + one.first))
        found[lag] = np.concatenate(parts)
    return found, notices


def _by_level(series: Series, lag: Lag) -> Levels:
    """Return the level `lag.steps` after each one, -1 for none; a lag of time without times stays at one station."""
    found = np.full(series.num_levels, -1, dtype=np.int64)
    by_station = series.times is None and not lag.by_row
    order = np.argsort(series.stations, kind="stable") if by_station else np.arange(series.num_levels)
    own, other = (
        (slice(-lag.steps, None), slice(lag.steps)) if lag.steps < 0 else (slice(-lag.steps), slice(lag.steps, None))
    )
    is_one = series.stations[order[own]] == series.stations[order[other]] if by_station else True
    found[order[own]] = np.where(is_one, order[other], -1)
    return found


def _levels_at(series: Series, times: Times, step_days: float, lag: Lag) -> Levels:
    """Return the levels of a series nearest to the lagged times, at the same station; -1 if none is near."""
    found = np.full(len(times), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(times) & ~series.is_repeat)
    order = known[np.lexsort((times[known], series.stations[known]))]
    for of_station in np.split(order, np.flatnonzero(np.diff(series.stations[order])) + 1) if len(order) else ():
        in_order = times[of_station]
        again = np.flatnonzero(np.diff(in_order) <= _SAME * step_days)
        if len(again):
            raise _twice(series, int(of_station[again[0]]), int(of_station[again[0] + 1]), lag)
        wanted = in_order + lag.steps * step_days
        after = np.minimum(np.searchsorted(in_order, wanted), len(in_order) - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(np.abs(in_order[before] - wanted) < np.abs(in_order[after] - wanted), before, after)
        is_near = np.abs(in_order[nearest] - wanted) <= _NEAR * step_days
        found[of_station] = np.where(is_near, of_station[nearest], -1)
    return found


def _twice(series: Series, level: int, other: int, lag: Lag) -> DataError:
    low, high = sorted((level, other))
    paths = series.path_of(low), series.path_of(high)
    problem = "two of its times are equal" if paths[0] == paths[1] else f"has a time that {paths[0]} also has"
    return DataError(
        f"{paths[1]}: {problem}, but [time{lag.steps:+d}] needs each time once at a station; name the column of "
        f"stations in data.coordinates={{station: NAME}}, give each time once, or use [row{lag.steps:+d}], which "
        "counts rows regardless of their times"
    )


def _notices(series: Series, times: Times, levels: Levels, step_days: float, lag: Lag) -> Iterator[str]:
    """Yield a line if the lagged level is missing at times between the first and the last of a station."""
    is_known, num_stations = np.isfinite(times), int(series.stations.max(initial=0)) + 1
    first, last = np.full(num_stations, np.inf), np.full(num_stations, -np.inf)
    np.minimum.at(first, series.stations[is_known], times[is_known])
    np.maximum.at(last, series.stations[is_known], times[is_known])
    wanted = times + lag.steps * step_days
    is_inside = (wanted >= first[series.stations]) & (wanted <= last[series.stations])
    num_missing, num_unknown = int(((levels < 0) & ~series.is_repeat & is_inside).sum()), int((~is_known).sum())
    subject = f"{series.paths[0]}: [time{lag.steps:+d}] leaves out"
    if num_missing:
        count, side = abs(lag.steps), "before" if lag.steps < 0 else "after"
        yield (
            f"{subject} {num_missing} of {series.num_levels} times: there is no time {count} "
            f"step{'s' if count > 1 else ''} of {show_step(step_days)} {side} them; [row{lag.steps:+d}] counts rows, "
            "regardless of their times"
        )
    if num_unknown:
        yield f"{subject} {num_unknown} of {series.num_levels} rows, which have no time"
