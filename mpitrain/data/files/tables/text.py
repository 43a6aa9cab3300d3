"""Text of a column as numbers or times, or why it is neither: the row, the value, and the setting to write.

N  rows
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import OF_DATES
from mpitrain.data.files.tables.dates import days_by, first_other, looks_like_date, patterns_of
from mpitrain.errors import one_line

# As pyarrow and pandas have them.
_NOTHING = ("", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "<NA>", "NULL", "null", "NaN", "-NaN", "nan", "-nan", "n/a",
            "None")  # fmt: skip
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?[iI]nf(inity)?$"
_DECIMAL_COMMA, _GROUPS = r"^[-+]?\d*,\d+([eE][-+]?\d+)?$", r"^[-+]?\d{1,3}(,\d{3})+(\.\d*)?$"
_WHOLE_GROUPS, _WHOLE = r"^[-+]?\d{1,3}(,\d{3})+$", r"^[-+]?\d+$"
_OF_NUMBERS = set("0123456789.,'+-eE ")
_FIRST_ROWS, _MOST_WORDS, _MOST_LETTERS = 1000, 5, 30
_MANY = 0.5

Numbers = tuple[npt.NDArray[np.float64], Mapping[str, str]]


def numbers_of_text(column: Any, missing_words: Sequence[str], time_format: str | None) -> Numbers | str:
    """Return the text (N,) of a pyarrow column as numbers, NaN for none, and their attributes; a line if it is neither.

    Times become days since 1970. A column of which the first rows are hardly numbers or times is not looked at further.
    """
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column.cast("string"))
    texts = pc.if_else(pc.is_in(texts, _array([*_NOTHING, *missing_words])), None, texts)
    first = texts.slice(0, _FIRST_ROWS).drop_null()
    if len(texts) > _FIRST_ROWS and isinstance(_read(first, time_format), str) and not _may_be_numbers(first):
        texts = texts.slice(0, _FIRST_ROWS)
    return _read(texts, time_format)


def _read(texts: Any, time_format: str | None) -> Numbers | str:
    import pyarrow.compute as pc

    present = texts.drop_null()
    if len(present) == 0:
        return np.full(len(texts), np.nan), {}
    is_number = pc.match_substring_regex(texts, _NUMBER)
    if time_format is not None and (days := days_by(texts, time_format)) is not None:
        return days, OF_DATES
    if pc.all(is_number).as_py():
        return _floats(texts), {}
    if _has_decimal_commas(present):
        return _floats(pc.replace_substring(texts, ",", ".")), {}
    is_grouped = pc.match_substring_regex(texts, _GROUPS)
    if pc.all(pc.or_(is_number, is_grouped)).as_py() and not _are_all_groups(present):
        return _floats(pc.replace_substring(texts, ",", "")), {}
    return _dates(texts, time_format) or _reason(texts, is_number)


def _floats(texts: Any) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = texts.cast("float64").to_numpy()
    return values


def _share(present: Any, regex: str) -> float:
    import pyarrow.compute as pc

    return float(pc.mean(pc.match_substring_regex(present, regex).cast("float64")).as_py() or 0.0)


def _has_decimal_commas(present: Any) -> bool:
    """Tell whether all numbers are written with a comma, which in some of them cannot part thousands."""
    commas, whole = _share(present, _DECIMAL_COMMA), _share(present, f"{_DECIMAL_COMMA}|{_WHOLE}")
    return commas > 0 and whole == 1 and _share(present, _WHOLE_GROUPS) != commas


def _are_all_groups(present: Any) -> bool:
    """Tell whether no number has a decimal point: 1,234 may be one and a part then."""
    return _share(present, f"{_WHOLE_GROUPS}|{_WHOLE}") == 1


def _may_be_numbers(present: Any) -> bool:
    import pyarrow.compute as pc

    dates = pc.mean(_array([looks_like_date(one) or bool(patterns_of(one)) for one in present.to_pylist()]))
    return max(_share(present, f"{_NUMBER}|{_DECIMAL_COMMA}|{_GROUPS}"), dates.as_py() or 0.0) >= _MANY


def _dates(texts: Any, time_format: str | None) -> Numbers | str | None:
    """Return the days of dates that are written in one way; a line where there are two, None where they are none."""
    import pyarrow.compute as pc

    present = texts.drop_null()
    patterns = patterns_of(present[0].as_py()) if time_format is None else (time_format,)
    fitting = [(pattern, days) for pattern in patterns if (days := days_by(texts, pattern)) is not None]
    if len(fitting) == 1 or (fitting and (fitting[0][1] == fitting[1][1])[pc.is_valid(texts).to_numpy()].all()):
        return fitting[0][1], OF_DATES
    looks = [looks_like_date(one) for one in present.slice(0, _FIRST_ROWS).to_pylist()]
    if not patterns or (not fitting and np.mean(looks) < _MANY):
        return None
    if fitting:
        first, second = (f'data.time_format="{pattern}"' for pattern, _ in fitting)
        return f"holds '{_shown(present[0].as_py())}', one date or another; set '{first}' or '{second}'"
    number, how = first_other(texts, patterns), f"no time as data.time_format='{patterns[0]}' writes it"
    if time_format is not None and number == 0:
        return f"holds '{_shown(present[0].as_py())}', {how}"
    return _of_row(texts, number, how)


def _reason(texts: Any, is_number: Any) -> str:
    import pyarrow.compute as pc

    present = texts.drop_null()
    first = _shown(present[0].as_py())
    if np.mean([looks_like_date(one) for one in present.slice(0, _FIRST_ROWS).to_pylist()]) >= _MANY:
        return (
            f"holds text, such as '{first}'; if these are times, set data.time_format to how they are written, such as "
            "'data.time_format=\"%d/%m/%y %H:%M\"'"
        )
    if _are_all_groups(present):
        return f"holds '{first}', a part or thousands by the comma; write it as a point, or without it"
    if _share(present, _NUMBER) < _MANY:
        return f"holds text, such as '{first}', expected numbers; name another"
    rows = np.flatnonzero(~pc.fill_null(is_number, True).to_numpy())
    return _of_row(texts, int(rows[0]), "no number", pc.unique(texts.take(_array(rows))).to_pylist())


def _of_row(texts: Any, number: int, what: str, others: Sequence[str] = ()) -> str:
    value = texts[number].as_py()
    held = f"holds '{_shown(value)}' in row {number + 1}"
    if set(value) <= _OF_NUMBERS and any(map(str.isdigit, value)) and not others[1:]:
        return f"{held}, no number as the others are written; write it as these"
    words = json.dumps([one_line(one) for one in others or (value,)][:_MOST_WORDS], ensure_ascii=False)
    more = " and more" if len(others) > _MOST_WORDS else ""
    stand = "these stand" if len(others) > 1 else "it stands"
    return f"{held}, {what}; if {stand} for a missing value, set 'data.missing_values={words}'{more}"


def _shown(text: str) -> str:
    return one_line(text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}...")


def _array(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values)
