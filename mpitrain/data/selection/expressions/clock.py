"""Decoded time: days since 1970-01-01 in the files' own calendar, the day of the year, the hour, and dates in masks.

T  time levels of a file
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.errors import ConfigError, DataError

EPOCH = "days since 1970-01-01"
DATE = re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?\b")
TIME = "time"
CLOCK_NAMES = (TIME, "day_of_year", "hour_of_day", "month", "year")
Times = npt.NDArray[np.float64]


def is_clock(name: str, file: FieldFile) -> bool:
    """Tell whether a name stands for something of the decoded time: what the file itself calls so is the file's."""
    info = file.variables.get(name)
    return name in CLOCK_NAMES and (info is None or (name == TIME and " since " in info.units))


def read_times(info: VariableInfo | None, file: FieldFile) -> tuple[Times, str]:
    """Return the days (T,) since 1970-01-01 of a file's time levels, and the calendar.

    `info` is the coordinate variable of the time axis. Raises DataError where there is none that says since when.
    """
    import cftime

    if info is None or " since " not in info.units:
        raise DataError(
            f"{file.path}: its time levels have no time (a coordinate variable with units such as 'days since "
            "2000-01-01'), which time, day_of_year, hour_of_day and dates need; take these out of the settings"
        )
    calendar = _plain(info.text("calendar"))
    values = read_column(file, info)
    try:
        dates = cftime.num2date(values, info.units, calendar=calendar)
        return np.asarray(cftime.date2num(dates, EPOCH, calendar=calendar), dtype=np.float64).reshape(-1), calendar
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{file.path}: its times, '{info.units}', cannot be read ({error}); mend its units") from error


def clock_values(name: str, times: Times, calendar: str) -> Times:
    """Return time, day_of_year, hour_of_day, month or year (T,) of `times` (T,), the first two with fractions."""
    import cftime

    if name == TIME:
        return times
    # To the second: sums of days leave 23:59:59.999.
    dates: Any = cftime.num2date(np.round(times * 86400.0), "seconds since 1970-01-01", calendar=calendar)
    if name in ("month", "year"):
        return np.array([getattr(date, name) for date in dates], dtype=np.float64)
    hours = np.array([date.hour + date.minute / 60 + date.second / 3600 for date in dates], dtype=np.float64)
    if name == "hour_of_day":
        return hours
    return np.array([date.timetuple().tm_yday for date in dates], dtype=np.float64) + hours / 24


def day_of(date: str, calendar: str, key: str) -> float:
    """Return the days since 1970-01-01 of a date in the text of the setting `key`. Raises ConfigError."""
    import cftime

    words = [int(word) for word in re.split(r"[-T :]", date)]
    try:
        return float(cftime.date2num(cftime.datetime(*words, calendar=calendar), EPOCH, calendar=calendar))
    except ValueError as error:
        raise ConfigError(f"{key}: {date} is no date of the calendar '{calendar}' ({error})") from error


def _plain(calendar: str) -> str:
    return {"": "standard", "gregorian": "standard"}.get(calendar.lower(), calendar.lower())
