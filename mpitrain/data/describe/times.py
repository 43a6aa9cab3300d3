"""Decoding of the times of a file's time levels, in the calendar of the file.

T  time levels of a file
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import read, read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError, one_line

EPOCH = "days since 1970-01-01"
Times = npt.NDArray[np.float64]
# Calendars without a year 0, and the first day of year 0 in days since 1970, if that year is counted.
_WITHOUT_YEAR_ZERO = {"standard": -719530.0, "julian": -719543.0}
_CALENDARS = {"": "standard", "gregorian": "standard", "360": "360_day", "365": "noleap", "366": "all_leap",
              "utc": "standard", "tai": "standard"}  # fmt: skip
_CF_CALENDARS = ("standard", "proleptic_gregorian", "noleap", "365_day", "all_leap", "366_day", "360_day", "julian")
GREGORIAN = {"standard", "proleptic_gregorian"}
"""Calendars with equal dates from the first day of the Gregorian calendar on."""
_LEAP_YEAR_DAYS, _MONTHS = 366.0, 12
_DAYS_A_YEAR = {"360_day": 360.0, "noleap": 365.0, "365_day": 365.0, "all_leap": 366.0, "366_day": 366.0}
_SINCE_YEAR_ZERO = re.compile(r"\bsince\s+0+-", re.IGNORECASE)
# Months and years have no fixed length: integers are counted in the calendar. cftime decodes months of 360_day.
_CALENDAR_UNITS = re.compile(r"^\s*(month|year)s?\s+(since\s+.*)$", re.IGNORECASE)
_MONTHS_IN = {"month": 1, "year": 12}
_MOST_LOOKED_AT = 20
_CALLED_TIME = re.compile(r"date|time", re.IGNORECASE)


class DecodedTimes(NamedTuple):
    """Days (T,) since 1970-01-01, their calendar, and whether times at interval ends were moved to the middles."""

    days: Times
    calendar: str
    are_interval_middles: bool


def read_times(info: VariableInfo | None, file: FieldFile) -> DecodedTimes:
    """Return the decoded times of a file's time levels.

    `info` is the coordinate variable of the time axis. Means with a time at an end of their interval get its middle.
    Raises DataError if `info` is None or its units do not count from a date.
    """
    if info is None or not counts_from_a_date(info.units):
        raise DataError(
            f"{file.path}: its time levels have no time (a coordinate variable with units such as 'days since "
            "2000-01-01'), which time, day_of_year, hour_of_day and dates need; "
            + (where_times_may_be(file) or "remove these from the settings")
        )
    calendar = plain_calendar(info.text("calendar"))
    if calendar not in _CF_CALENDARS:
        raise DataError(
            f"{file.path}: the calendar of {info.name} is '{one_line(calendar)}', which CF does not define; write one "
            f"of {', '.join(_CF_CALENDARS)}"
        )
    ends = _ends_of_means(info, file)
    dates = lambda values: dates_of(np.ma.masked_invalid(values), info.units, calendar)  # noqa: E731
    days = lambda values: numbers_of(dates(values), EPOCH, calendar).reshape(-1)  # noqa: E731
    try:
        times = (
            days(read_column(file, info)) if ends is None else _middles(days(ends[0]), days(ends[1]), info, calendar)
        )
        return DecodedTimes(times, calendar, ends is not None)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{file.path}: its times, '{info.units}', cannot be read ({error}); correct its units, or write days since "
            f"a date to {info.name}"
        ) from error


def where_times_may_be(file: FieldFile, by_name: bool = False) -> str | None:
    """Return advice on settings if a column of text, or of numbers without units, may hold times; None otherwise.

    With `by_name` columns of numbers are considered only if their name contains "date" or "time".
    """
    from mpitrain.data.files.tables.dates import pattern_of_number

    columns = [one for one in file.variables.values() if len(one.shape) == 1 and one.shape[0] and not one.units]
    for info in columns:
        note = file.note_of(info.name)
        if info.is_text and note is not None and "data.time_format" in note:
            return f"column '{info.name}' {note}"
    for info in [one for one in columns if not by_name or _CALLED_TIME.search(one.name)][:_MOST_LOOKED_AT]:
        value = read(file, info.name, (slice(0, 1),))[0] if info.is_numeric else np.nan
        pattern = pattern_of_number(float(value)) if np.isfinite(value) else None
        if pattern is not None:
            return (
                f"if numbers of '{info.name}', such as {value:.15g}, are times, set "
                f"'data.coordinates={{time: {info.name}}}' 'data.time_format=\"{pattern}\"'"
            )
    return None


def _ends_of_means(info: VariableInfo, file: FieldFile) -> tuple[Times, Times] | None:
    """Return start and end (T,) of the averaging intervals, if the times are at one end of these; None otherwise.

    The intervals are CF's `bounds`; for climatologies, from the start of the first one to the end of the last.

    A record with an empty interval, such as the first of many runs, keeps its time. None if the times are not at an
    end, if no variable is a mean or other statistic over time (CF `cell_methods`) or one is valid at a point in time,
    and for bounds that were never written: missing, or not containing their times.
    """
    named = info.text("bounds") or info.text("climatology")
    bounds = file.variables.get(f"{info.name.rpartition('/')[0]}/{named}".lstrip("/"))
    if bounds is None or not bounds.is_numeric or len(info.shape) != 1 or bounds.shape != (*info.shape, 2):
        return None
    over_time = re.compile(rf"\b(?:time|{re.escape(info.short_name)})\s*:\s*(\w+)")
    methods = {method for one in file.variables.values() for method in over_time.findall(one.text("cell_methods"))}
    if not methods or "point" in methods:
        return None
    values, both = read_column(file, info), read(file, bounds.name, (slice(None), slice(None))).astype(np.float64)
    low, high = both.min(axis=1), both.max(axis=1)
    is_mean = np.isfinite(values) & ~((low == high) & (low == values))
    at_end = [bool((end[is_mean] == values[is_mean]).all()) for end in (low, high)]
    if not is_mean.any() or not any(at_end) or not (low < high)[is_mean].all():
        return None
    return np.where(is_mean, low, values), np.where(is_mean, high, values)


def _middles(starts: Times, ends: Times, info: VariableInfo, calendar: str) -> Times:
    """Return the middles (T,) of intervals, in days; for a climatology those in the last year (CF 7.4)."""
    if info.text("climatology") and not info.text("bounds"):
        year = _DAYS_A_YEAR.get(calendar, 365.2425)
        rest = np.mod(ends - starts, year)
        is_mean = ends > starts
        starts = np.where(is_mean, ends - np.where((rest < 1) | (rest > year - 1), year, rest), starts)
    return (starts + ends) / 2


def plain_calendar(calendar: str) -> str:
    """Return the name of a calendar as in cftime; "" means "standard", and "360" means "360_day"."""
    return _CALENDARS.get(calendar.lower(), calendar.lower())


def dates_of(values: Any, units: str, calendar: str) -> Any:
    """Return the dates of numbers in `units`, as an array of cftime dates of the same shape.

    Climatologies may be in the year 0, which the standard and Julian calendars lack: dates in units since year 0 count
    it. Numbers of months and years must be integers and are counted in the calendar, because their lengths differ.
    Raises ValueError, TypeError or OverflowError.
    """
    import cftime

    calendar, counted = plain_calendar(calendar), _CALENDAR_UNITS.match(units)
    if counted is not None and not (calendar == "360_day" and counted[1].lower() == "month"):
        months = _whole(values) * _MONTHS_IN[counted[1].lower()]
        start = np.ravel(dates_of([0.0], f"days {counted[2]}", calendar))[0]
        dates = [_months_later(start, int(one)) for one in np.ma.filled(months, 0).ravel()]
        whole = np.array(dates, dtype=object).reshape(np.shape(months))
        return np.ma.array(whole, mask=np.ma.getmaskarray(months))
    if not (_SINCE_YEAR_ZERO.search(units) and calendar in _WITHOUT_YEAR_ZERO):
        return cftime.num2date(values, units, calendar=calendar)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cftime warns that CF has no year 0
        return cftime.num2date(values, units, calendar=calendar, has_year_zero=True)


def in_calendar(dates: Any, calendar: str) -> Any:
    """Return dates with the same year, month, day and time in another calendar. Raises ValueError if it lacks one."""
    import cftime

    calendar = plain_calendar(calendar)
    if all(date is np.ma.masked or date.calendar == calendar for date in np.ravel(np.ma.asarray(dates))):
        return dates
    parts = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    moved = [
        date if date is np.ma.masked else cftime.datetime(*(getattr(date, part) for part in parts), calendar=calendar)
        for date in np.ma.asarray(dates)
    ]
    return np.ma.array(moved, mask=np.ma.getmaskarray(dates), dtype=object)


def _whole(values: Any) -> Any:
    """Return numbers unchanged, masked where missing. Raises ValueError if one is not an integer."""
    found = np.ma.masked_invalid(np.ma.asarray(values, dtype=np.float64))
    if not np.ma.allequal(found, np.round(found)):
        raise ValueError("a fraction of a month or year is not a date, because their lengths differ")
    return found


def _months_later(start: Any, count: int) -> Any:
    """Return the date `count` months later. Raises ValueError if that month lacks the day."""
    years, month = divmod(start.month - 1 + count, _MONTHS)
    try:
        return start.replace(year=start.year + years, month=month + 1)
    except ValueError as error:
        raise ValueError(f"month {month + 1} of {start.year + years} has no day {start.day}") from error


def _months_since(start: Any, dates: Any, months_in: int) -> Times:
    """Return the numbers of months or years from a date to dates. Raises ValueError if one is not an integer."""
    numbers = np.full(np.shape(dates), np.nan)
    for place, date in np.ndenumerate(np.ma.asarray(dates)):
        if date is np.ma.masked:
            continue
        count, rest = divmod((date.year - start.year) * _MONTHS + date.month - start.month, months_in)
        if rest or date != _months_later(start, count * months_in):
            raise ValueError(f"{date} is not a whole number of months or years after {start}")
        numbers[place] = count
    return numbers


def numbers_of(dates: Any, units: str, calendar: str) -> Times:
    """Return dates as numbers in `units`, float64, NaN where masked. Raises as `dates_of`.

    A year 0 is counted if the dates count it.
    """
    import cftime

    calendar, counted = plain_calendar(calendar), _CALENDAR_UNITS.match(units)
    if counted is not None and not (calendar == "360_day" and counted[1].lower() == "month"):
        start = np.ravel(dates_of([0.0], f"days {counted[2]}", calendar))[0]
        return _months_since(start, dates, _MONTHS_IN[counted[1].lower()])
    counts_zero = calendar in _WITHOUT_YEAR_ZERO and any(
        getattr(date, "has_year_zero", False) for date in np.ravel(dates)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = {"has_year_zero": True} if counts_zero else {}
        numbers = cftime.date2num(dates, units, calendar=calendar, **zero)
    return np.ma.filled(np.ma.asarray(numbers, dtype=np.float64), np.nan)


def dates_at(times: Times, calendar: str) -> Any:
    """Return the cftime dates of days (T,) since 1970-01-01, without missing values."""
    first = _WITHOUT_YEAR_ZERO.get(calendar)
    is_climatology = first is not None and bool((times < first + _LEAP_YEAR_DAYS).any())
    days, since = (times - first, "0000-01-01") if first is not None and is_climatology else (times, "1970-01-01")
    # Round to seconds: sums of days give 23:59:59.999.
    return dates_of(np.round(days * 86400.0), f"seconds since {since}", calendar)


def ranks_of_times(times: Times) -> npt.NDArray[np.int64]:
    """Return the rank (T,) of each time among the distinct times, from 0; -1 for a missing time (NaN)."""
    known = np.isfinite(times)
    ranks = np.full(len(times), -1, dtype=np.int64)
    ranks[known] = np.unique(times[known], return_inverse=True)[1]
    return ranks


@dataclass(frozen=True)
class StoredTimes:
    """The stored times (T,) of a file's time levels, their units and calendar."""

    values: Times
    units: str
    calendar: str


def read_stored_times(info: VariableInfo | None, file: FieldFile) -> StoredTimes | None:
    """Return the stored times of a time coordinate; None if there is none or its units do not count from a date."""
    if info is None or not counts_from_a_date(info.units):
        return None
    return StoredTimes(read_column(file, info), info.units, plain_calendar(info.text("calendar")))


def ranks_of_stored_times(
    parts: Sequence[StoredTimes | None], nums_times: Sequence[int]
) -> npt.NDArray[np.int64] | None:
    """Return the ranks (T,) of the times of several files among all distinct times, -1 for a missing time.

    None if a file has no times or a number of times that differs from its time levels, if all times are missing, or if
    the times of the files cannot be compared.
    """
    known = [one for one, count in zip(parts, nums_times, strict=True) if one is not None and len(one.values) == count]
    if len(known) < len(parts):
        return None
    times, first = [one.values for one in known], known[0]
    if any((one.units, one.calendar) != (first.units, first.calendar) for one in known):
        try:
            times = [_whole_ms(one, first.calendar) for one in known]
        except (ValueError, TypeError, OverflowError):
            return None
    ranks = ranks_of_times(np.concatenate(times))
    return ranks if (ranks >= 0).any() else None


def _whole_ms(stamps: StoredTimes, calendar: str) -> Times:
    """Return times as whole milliseconds since 1970, so that equal times in different units compare equal."""
    dates = in_calendar(dates_of(np.ma.masked_invalid(stamps.values), stamps.units, stamps.calendar), calendar)
    return np.round(numbers_of(dates, EPOCH, calendar) * 86_400_000.0)
