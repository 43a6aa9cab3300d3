"""Quantities computed from the decoded time: days since 1970-01-01, day of year, hour, and dates in masks.

T  time levels of a file
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mpitrain.data.describe.times import EPOCH, Times, dates_at
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import ConfigError

DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?\b")
TIME = "time"
CLOCK_NAMES = (TIME, "day_of_year", "hour_of_day", "month", "year")


def is_clock(name: str, file: FieldFile) -> bool:
    """Return whether a name stands for a quantity computed from the decoded time.

    A variable of that name in the file takes precedence, unless it is `time` in units since a date.
    """
    info = file.variables.get(name)
    return name in CLOCK_NAMES and (info is None or (name == TIME and counts_from_a_date(info.units)))


def clock_values(name: str, times: Times, calendar: str) -> Times:
    """Return time, day_of_year, hour_of_day, month or year (T,) of `times` (T,), the first three with fractions.

    A missing time (NaN) gives NaN.
    """
    if name == TIME:
        return times
    values, is_known = np.full(times.shape, np.nan), np.isfinite(times)
    values[is_known] = [_of_date(name, date) for date in dates_at(times[is_known], calendar)]
    return values


def _of_date(name: str, date: Any) -> float:
    if name in ("month", "year"):
        return float(getattr(date, name))
    hours = date.hour + date.minute / 60 + date.second / 3600
    return float(hours) if name == "hour_of_day" else float(date.timetuple().tm_yday + hours / 24)


def day_of(date: str, calendar: str, key: str) -> float:
    """Return the days since 1970-01-01 of a date in the text of the setting `key`. Raises ConfigError."""
    import cftime

    parts = [int(part) for part in re.split(r"[-T :]", date)]
    try:
        return float(cftime.date2num(cftime.datetime(*parts, calendar=calendar), EPOCH, calendar=calendar))
    except ValueError as error:
        raise ConfigError(f"{key}: {date} is not a date of the calendar '{calendar}' ({error})") from error
