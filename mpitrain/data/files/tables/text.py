"""Conversion of text columns to numbers or times, or a message: the row, the value and the setting to use.

N  rows
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import OF_DATES
from mpitrain.data.files.tables.dates import days_by, days_of_iso, first_other, looks_like_date, patterns_of
from mpitrain.errors import one_line

# Text that pyarrow and pandas read as missing.
_NOTHING = ("", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "<NA>", "NULL", "null", "NaN", "-NaN", "nan", "-nan", "n/a",
            "None")  # fmt: skip
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?[iI]nf(inity)?$"
_DECIMAL_COMMA, _GROUPS = r"^[-+]?\d*,\d+([eE][-+]?\d+)?$", r"^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$"
_DOTTED_GROUPS = r"^[-+]?[1-9]\d{0,2}(\.\d{3})+,\d+$"
_WHOLE_GROUPS, _WHOLE = r"^[-+]?[1-9]\d{0,2}(,\d{3})+$", r"^[-+]?\d+$"
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")
_FIRST_ROWS, _MOST_VALUES, _MOST_LETTERS = 1000, 5, 30
_MANY, _FEW = 0.5, 0.02

Numbers = tuple[npt.NDArray[np.float64], Mapping[str, str]]


def numbers_of_text(
    column: Callable[[int | None], Any], missing_texts: Sequence[str], time_format: str | None, is_time: bool = False
) -> Numbers | str:
    """Return a text column as numbers (N,), NaN where missing, and their attributes; a message if it is neither.

    Times become days since 1970. `column(n)` returns the first n rows as a pyarrow array, `column(None)` all rows. The
    first 1000 rows are tried first; if they are clearly text, the others are not read. With `is_time` numbers are
    parsed by `time_format` too. Raises DataError for an invalid `time_format`.
    """
    found: Numbers | str = ""
    for num_rows in (_FIRST_ROWS, None):
        found = _read(_with_nulls(column(num_rows), missing_texts), time_format, is_time)
        if isinstance(found, _Hopeless):
            break
    return found


class _Hopeless(str):
    """Message for a column that is clearly text, so that no further rows need to be read."""


def _with_nulls(column: Any, missing_texts: Sequence[str]) -> Any:
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column.cast("string"))
    return pc.if_else(pc.is_in(texts, _array([*_NOTHING, *missing_texts])), None, texts)


def _read(texts: Any, time_format: str | None, is_time: bool) -> Numbers | str:
    import pyarrow.compute as pc

    present = texts.drop_null()
    if len(present) == 0:
        return np.full(len(texts), np.nan), {}
    is_number = pc.match_substring_regex(texts, _NUMBER)
    if time_format is not None and (is_time or not pc.any(is_number).as_py()):
        days = days_by(texts, time_format)
        if days is not None or is_time:
            return (days, OF_DATES) if days is not None else _no_time(texts, time_format)
    if pc.all(is_number).as_py():
        return _floats(texts), {}
    if _has_decimal_commas(present):
        return _floats(pc.replace_substring(pc.replace_substring(texts, ".", ""), ",", ".")), {}
    is_grouped = pc.match_substring_regex(texts, _GROUPS)
    if pc.all(pc.or_(is_number, is_grouped)).as_py() and not _are_all_groups(present):
        return _floats(pc.replace_substring(texts, ",", "")), {}
    return _dates(texts) or _reason(texts, is_number)


def _floats(texts: Any) -> npt.NDArray[np.float64]:
    return np.asarray(texts.cast("float64").to_numpy())


def _share(present: Any, regex: str) -> float:
    import pyarrow.compute as pc

    return float(pc.mean(pc.match_substring_regex(present, regex).cast("float64")).as_py() or 0.0)


def _has_decimal_commas(present: Any) -> bool:
    """Tell whether all numbers have decimal commas: in at least one the comma cannot be a thousands separator."""
    with_comma = f"{_DECIMAL_COMMA}|{_DOTTED_GROUPS}"
    commas, whole = _share(present, with_comma), _share(present, f"{with_comma}|{_WHOLE}")
    return commas > 0 and whole == 1 and _share(present, _WHOLE_GROUPS) != commas


def _are_all_groups(present: Any) -> bool:
    """Tell whether no number has a decimal point: then the comma in 1,234 may be a decimal comma."""
    return _share(present, f"{_WHOLE_GROUPS}|{_WHOLE}") == 1


def _dates(texts: Any) -> Numbers | str | None:
    """Return dates of one format as days; a message if two formats fit or a row does not; None if most are no dates."""
    import pyarrow.compute as pc

    present = texts.drop_null()
    patterns = patterns_of(present[0].as_py())
    if _ISO.match(present[0].as_py()) and (days := days_of_iso(texts)) is not None:
        return days, OF_DATES
    fitting = [(pattern, days) for pattern in patterns if (days := days_by(texts, pattern)) is not None]
    if len(fitting) == 1 or (fitting and (fitting[0][1] == fitting[1][1])[pc.is_valid(texts).to_numpy()].all()):
        return fitting[0][1], OF_DATES
    if fitting:
        first, second = (f'data.time_format="{pattern}"' for pattern, _ in fitting)
        return f"holds '{_shown(present[0].as_py())}', an ambiguous date; set '{first}' or '{second}'"
    if not patterns or not _share_of_dates(present) >= _MANY:
        return None
    return _of_row(texts, first_other(texts, patterns), "not a time")


def _no_time(texts: Any, time_format: str) -> str:
    number = first_other(texts, [time_format])
    value = _shown(texts[number].as_py())
    return f"holds '{value}' in row {number + 1}, which does not match data.time_format='{time_format}'"


def _share_of_dates(present: Any) -> float:
    return float(np.mean([looks_like_date(one) for one in present.slice(0, _FIRST_ROWS).to_pylist()]))


def _reason(texts: Any, is_number: Any) -> str:
    import pyarrow.compute as pc

    present = texts.drop_null()
    first = _shown(present[0].as_py())
    if _share_of_dates(present) >= _MANY:
        return (
            f"holds text, such as '{first}'; if these are times, set data.time_format to their format, such as "
            "'data.time_format=\"%d/%m/%y %H:%M\"'"
        )
    if _are_all_groups(present):
        either = present.filter(pc.match_substring_regex(present, _WHOLE_GROUPS))[0].as_py()
        return (
            f"holds '{_shown(either)}', whose comma may be decimal or a thousands separator; write a point, or no comma"
        )
    rows = np.flatnonzero(~pc.fill_null(is_number, True).to_numpy())
    others, share = pc.unique(texts.take(_array(rows))).to_pylist(), _share(present, _NUMBER)
    if share < _MANY and not (share > _FEW and len(others) <= _MOST_VALUES):
        return _Hopeless(f"holds text, such as '{first}', expected numbers; name another")
    return _of_row(texts, int(rows[0]), "not a number", others)


def _of_row(texts: Any, number: int, problem: str, others: Sequence[str] = ()) -> str:
    value = texts[number].as_py()
    words = json.dumps([one_line(one) for one in others or (value,)][:_MOST_VALUES], ensure_ascii=False)
    more = " and more" if len(others) > _MOST_VALUES else ""
    found, setting = f"holds '{_shown(value)}' in row {number + 1}", f"'data.missing_values={words}'{more}"
    if any(map(str.isdigit, value)) and not others[1:]:
        return (
            f"{found}, {problem} in the format of the others; write it like the others, or set {setting} if it means a "
            "missing value"
        )
    return f"{found}, {problem}; if {'these mean' if len(others) > 1 else 'it means'} a missing value, set {setting}"


def _shown(text: str) -> str:
    return one_line(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}...")


def _array(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values)
