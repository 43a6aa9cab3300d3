"""Parsing of dates in text and in digits, such as 31.12.2020 or 202012310000, to days since 1970-01-01."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import days_of_dates
from mpitrain.errors import DataError, reason_of

_CLOCK = (
    r"(?P<between>[ T_:]|$)(?:(?P<time>\d{1,2}:\d{2}(?P<seconds>:\d{2})?)|(?P<digits>\d{4}(?:\d{2})?))?(?P<zone>Z?)$"
)
_WRITTEN = tuple(
    (re.compile(date + _CLOCK), patterns)
    for date, patterns in (
        (r"\d{4}(?P<s>[-/.])\d{1,2}(?P=s)\d{1,2}", ("%Y{s}%m{s}%d",)),
        (r"\d{1,2}(?P<s>\.)\d{1,2}\.\d{4}", ("%d.%m.%Y",)),
        (r"\d{1,2}(?P<s>[-/])\d{1,2}(?P=s)\d{4}", ("%d{s}%m{s}%Y", "%m{s}%d{s}%Y")),
        (r"\d{1,2}(?P<s>[- ])[A-Za-z]{3}(?P=s)\d{4}", ("%d{s}%b{s}%Y",)),
        (r"(?P<s>)\d{8}", ("%Y%m%d",)),
    )
)
_DIGITS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_LOOKS = re.compile(r"\d{1,4}[-/. ](\d{1,2}|[A-Za-z]{3})[-/. ]\d{1,4}\b.*|\d{8}[ T_:]\d{4,6}")
_YEARS = range(1700, 2200)


def patterns_of(text: str) -> tuple[str, ...]:
    """Return the `strptime` patterns that may fit a text; two if day and month may be in either order, () if none."""
    for written, patterns in _WRITTEN:
        if found := written.match(text):
            clock = f"%H:%M{':%S' if found['seconds'] else ''}" if found["time"] else ""
            if found["digits"]:
                clock = "%H%M%S" if len(found["digits"]) > len("HHMM") else "%H%M"
            if bool(found["between"]) == bool(clock):
                end = f"{found['between']}{clock}{found['zone']}"
                return tuple(pattern.format(s=found["s"]) + end for pattern in patterns)
    return ()


def looks_like_date(text: str) -> bool:
    """Tell whether a text may be a date, in any order, also with a year of two digits."""
    return bool(_LOOKS.fullmatch(text))


def pattern_of_number(number: float) -> str | None:
    """Return the `data.time_format` by which a number may be a time: a date's digits, or (milli)seconds since 1970."""
    if number != int(number):
        return None
    digits = str(int(number))
    pattern = _DIGITS.get(len(digits))
    if pattern is not None and int(digits[:4]) in _YEARS:
        with suppress(ValueError):
            datetime.strptime(digits, pattern)
            return pattern
    return {10: "seconds since 1970-01-01", 13: "milliseconds since 1970-01-01"}.get(len(digits))


def days_of_numbers(numbers: npt.NDArray[Any], pattern: str) -> npt.NDArray[np.float64] | int:
    """Return the dates in the digits of integers (N,) as days, by a strptime pattern; NaN for NaN.

    Returns the index of the first number that does not match the pattern, if there is one.
    """
    whole = [None if np.isnan(one) else f"{int(one)}" if one == int(one) else "" for one in numbers.tolist()]
    column = _column(whole)
    days = days_by(column, pattern)
    return first_other(column, [pattern]) if days is None else days


def days_of_iso(column: Any) -> npt.NDArray[np.float64] | None:
    """Return ISO 8601 times (N,) as days, also with fractions of seconds or zones; None if one cannot be parsed."""
    import pyarrow as pa

    for zone in (None, "UTC"):
        with suppress(pa.ArrowInvalid):
            return days_of_dates(column.cast(pa.timestamp("us", zone)).to_numpy())
    return None


def days_by(column: Any, pattern: str) -> npt.NDArray[np.float64] | None:
    """Return the texts (N,) of a column as days since 1970-01-01, NaN for null; None if one does not fit `pattern`."""
    found = _parsed(column, pattern)
    return None if found.null_count > column.null_count else days_of_dates(found.to_numpy())


def first_other(column: Any, patterns: Sequence[str]) -> int:
    """Return the index of the first text that does not fit the pattern that fits most texts."""
    import pyarrow.compute as pc

    fits = max((_parsed(column, one) for one in patterns), key=lambda one: len(one) - one.null_count)
    return int(np.flatnonzero(pc.and_(pc.is_null(fits), pc.is_valid(column)).to_numpy())[0])


def _parsed(column: Any, pattern: str) -> Any:
    """Return the times of a column, null where a text does not fit the pattern.

    Times are formatted and compared with the text, because `strptime` accepts 31 February as a day of March.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.strptime(column, format=pattern, unit="s", error_is_null=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"data.time_format='{pattern}' is not a valid strptime format ({reason_of(error)})") from error
    plain = lambda texts: pc.utf8_lower(pc.replace_substring_regex(texts, r"\b0+(\d)", r"\1"))  # noqa: E731
    if "%z" in pattern:  # not comparable: the text is in its own time zone, the result in UTC
        return found
    is_same = pc.equal(plain(pc.strftime(found, format=pattern, locale="C")), plain(column))
    return pc.if_else(pc.fill_null(is_same, False), found, pa.scalar(None, found.type))


def _column(texts: Sequence[str | None]) -> Any:
    import pyarrow as pa

    return pa.chunked_array([pa.array(texts, pa.string())])
