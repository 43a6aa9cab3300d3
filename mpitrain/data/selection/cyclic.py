"""Detection of cyclic inputs, such as longitude and month: a network sees a jump where the circle closes.

Their cosine and sine, as derived variables, are continuous.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.names import LONGITUDE, as_list, is_called, setting_name
from mpitrain.data.describe.times import Times
from mpitrain.data.files.decoding import read
from mpitrain.data.files.variable import FieldFile, first_part
from mpitrain.data.selection.expressions.clock import clock_values, is_clock
from mpitrain.data.selection.variable_access import is_radians

DAYS_A_YEAR, HOURS_A_DAY = 365.25, 24.0
_TURNS = {"month": 12.0, "day_of_year": DAYS_A_YEAR, "dayofyear": DAYS_A_YEAR, "doy": DAYS_A_YEAR,
          "hour_of_day": HOURS_A_DAY, "hour": HOURS_A_DAY}  # fmt: skip
# The largest gap between values, as a fraction of the circle, with which the circle counts as closed.
_WIDEST_GAP = 1 / 6
_MOST_TIMES = 10_000


def turn_of(name: str, file: FieldFile, times: Times | None = None, calendar: str = "standard") -> float | None:
    """Return the period of a cyclic input in its own units; None if it is not cyclic.

    `times` (T,) are days since 1970-01-01 of `calendar`. A quantity computed from them, such as the month, counts as
    cyclic only if its values at these times span more than half of the period.
    """
    info = file.variables.get(name)
    if info is None:
        found = _TURNS.get(name) if is_clock(name, file) else None
        if found is None or times is None:
            return None
        # A random subset: with a fixed stride all of its times might be at the same hour of the day.
        some = times if len(times) <= _MOST_TIMES else np.random.default_rng(0).choice(times, _MOST_TIMES)
        return found if closes(clock_values(name, some, calendar), found) else None
    if not info.is_numeric:
        return None
    turn = 2 * np.pi if is_radians(info.units) else 360.0
    found = turn if is_called(info, LONGITUDE) else _TURNS.get(info.short_name.lower())
    if found is None:
        return None
    return found if covers_circle(read(file, info.name, first_part(info, {})).reshape(-1), found) else None


def covers_circle(values: npt.NDArray[np.floating], turn: float) -> bool:
    """Return whether values lie all around a circle of length `turn`, within one period, without a large gap."""
    values = values[np.isfinite(values)]
    if not values.size or np.ptp(values) > turn:
        return False
    around = np.unique(values % turn)
    return bool(np.diff(around, append=around[0] + turn).max() <= _WIDEST_GAP * turn)


def closes(values: npt.NDArray[np.floating], turn: float) -> bool:
    """Return whether values span more than half of the period `turn`, so that their ends are close on the circle."""
    return bool(np.isfinite(values).any() and np.nanmax(values) - np.nanmin(values) > turn / 2)


def cosine_and_sine(name: str, turn: float) -> list[str]:
    """Return the two derived variables that replace a cyclic variable; `name` is its name in an expression."""
    angle = name if turn == 2 * np.pi else f"{2 * np.pi / turn:.6f}*{name}"
    return [f"cos({angle})", f"sin({angle})"]


def seam_notices(names: Sequence[str], file: FieldFile, times: Times | None, calendar: str) -> Iterator[str]:
    """Yield a notice that proposes cosine and sine for the cyclic ones of the inputs `names` (see `turn_of`)."""
    turns = {name: turn for name in names if (turn := turn_of(name, file, times, calendar)) is not None}
    if turns:
        called = {name: setting_name(info) if (info := file.variables.get(name)) else name for name in turns}
        instead = (cosine_and_sine(called[one], turns[one]) if one in turns else [one] for one in names)
        yield (
            f"{', '.join(turns)}: the network sees a jump where the circle closes; use cosine and sine instead: "
            f"variables.input_variables=[{as_list(chain.from_iterable(instead))}]"
        )
