"""Readers of CSV and Parquet, based on pyarrow: each column is a variable, each row a sample of its own."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import OF_DATES, OF_DURATIONS, numbers_of_array
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.variable import VariableInfo, reason_too_large
from mpitrain.errors import DataError, MissingDependencyError, one_line, reason_of

_MOST_COLUMNS = 20_000  # pyarrow needs 20 KB of memory for each
_HEADER_BYTES = 2**20
_SEPARATORS, _MOST_SHOWN, _MOST_LETTERS = (b",", b";", b"\t"), 4, 20
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf", re.IGNORECASE)
_WIDEST_VALUE_BYTES = 8
_AS_FLOATS = ("bool", "decimal")  # numpy has no missing value for bool, and no decimal type
_NOT_READ = ("list", "large_list", "fixed_size", "struct", "map", "time32", "time64", "binary", "month_day")
_NOT_UTF8 = "text that is not UTF-8; save the file as UTF-8, for example with iconv -f latin1 -t utf-8"
_DATES, _DURATION = ("timestamp", "date32", "date64"), "duration"


def open_csv(path: Path) -> ArrayFile:
    """Open a CSV file whose first line names the columns.

    Raises DataError if it cannot be read as CSV, and MissingDependencyError without pyarrow.
    """
    csv = _pyarrow(path, "csv")
    separator = _separator(path)
    options = csv.ParseOptions(delimiter=separator)
    try:
        table = _read(path, "CSV", lambda: csv.read_csv(str(path), parse_options=options))
        names = _names(path, _read(path, "CSV", lambda: table.column_names))
    except DataError as error:
        raise DataError(f"{error}{_hint(path)}") from error
    read = lambda number, num_first=None: _read(path, "CSV", lambda: table.column(number).slice(0, num_first))  # noqa: E731
    file = _columns(path, names, table.schema.types, len(table), read)
    are_bytes = [name for name, kind in zip(names, table.schema.types, strict=True) if str(kind) == "binary"]
    file.refused = {**file.refused, **dict.fromkeys(are_bytes, f"it holds {_NOT_UTF8}")}
    return file


def open_parquet(path: Path) -> ArrayFile:
    """Open a Parquet file. Raises DataError if it cannot be read, and MissingDependencyError without pyarrow."""
    parquet = _pyarrow(path, "parquet")
    import pyarrow

    # With a memory map the process would be killed if the file became shorter.
    file = _read(path, "Parquet", lambda: parquet.ParquetFile(str(path), memory_map=False))
    columns, kinds, num_rows = _read(
        path, "Parquet", lambda: (file.schema_arrow.names, file.schema_arrow.types, file.metadata.num_rows)
    )
    if reason := reason_too_large(num_rows * _WIDEST_VALUE_BYTES, lambda: path.stat().st_size):
        raise DataError(f"{path}: a column is not read: {reason}")

    def read(number: int, num_first: int | None = None) -> Any:
        if num_first is None:
            return _read(path, "Parquet", lambda: file.read(columns=[columns[number]]).column(0))
        batches = file.iter_batches(num_first, columns=[columns[number]])
        return _read(path, "Parquet", lambda: pyarrow.chunked_array([next(batches).column(0)]))

    return _columns(path, _names(path, columns), kinds, num_rows, read)


def _columns(
    path: Path, names: Sequence[str], kinds: Sequence[Any], num_rows: int, read: Callable[..., Any]
) -> ArrayFile:
    """Return the open file; `read` returns a column by number, or its first rows.

    Columns that are neither numbers nor text are refused.
    """
    refused = {
        name: f"it holds {one_line(str(kind))}, expected numbers"
        for name, kind in zip(names, kinds, strict=True)
        if str(kind).startswith(_NOT_READ)
    }
    kept = [number for number, name in enumerate(names) if name not in refused]
    infos = [_info(names[number], num_rows, kinds[number]) for number in kept]
    file = ArrayFile(path, infos, lambda number: _numbers(read(kept[number])))
    places = {names[number]: number for number in kept}
    file.text_column = lambda name, num_first: read(places[name], num_first)
    file.refused = refused
    file.notes = {
        names[number]: f"times with time zone {kinds[number].tz}: converted to UTC"
        for number in kept
        if getattr(kinds[number], "tz", None)
    }
    return file


def _pyarrow(path: Path, module: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise MissingDependencyError(f"{path}: CSV and Parquet need pyarrow: python -m pip install pyarrow") from error


def _read(path: Path, kind: str, read: Any) -> Any:
    try:
        return read()
    except Exception as error:  # pyarrow raises exceptions of many types for a damaged file
        raise DataError(
            f"{path}: cannot be read as {kind} ({reason_of(error)}); give a {kind} file of named columns"
        ) from error


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(_HEADER_BYTES)


def _hint(path: Path) -> str:
    """Return advice for a CSV file that cannot be read; "" if there is none."""
    header = _first_line(path)
    if header.startswith(b"#"):
        return "; comment lines (#) are not supported: remove them, so that the first line names the columns"
    try:
        header.decode()
    except UnicodeDecodeError:
        return f"; its first line holds {_NOT_UTF8}"
    return ""


def _separator(path: Path) -> str:
    """Return the separator of the columns: a comma, or the most frequent one in the first line if that has no comma.

    Raises DataError if the first line names too many columns, or contains numbers in place of names.
    """
    header = _first_line(path)
    separator = max(_SEPARATORS, key=header.count) if b"," not in header else b","
    if header.count(separator) >= _MOST_COLUMNS or len(header) == _HEADER_BYTES:
        raise DataError(
            f"{path}: its first line names {header.count(separator) + 1} columns or more, at most {_MOST_COLUMNS} are "
            "read; give a CSV file whose first line names the columns"
        )
    fields = [field.strip().strip('"') for field in header.decode("utf-8", "replace").split(separator.decode())]
    if _are_values(fields):
        names = separator.decode().join(f"c{number}" for number in range(1, min(len(fields), _MOST_SHOWN) + 1))
        more = f"{separator.decode()}..." if len(fields) > _MOST_SHOWN else ""
        raise DataError(
            f"{path}: its first line holds numbers, such as {fields[0][:_MOST_LETTERS]}, and no names of its "
            f"{len(fields)} columns; insert a line with the names before it, such as {names}{more}"
        )
    return separator.decode()


def _are_values(fields: Sequence[str]) -> bool:
    """Tell whether a line contains values: mostly numbers, unless all are distinct integers, which may be names."""
    numbers = [field for field in fields if _NUMBER.fullmatch(field)]
    may_be_names = all(map(str.isdigit, numbers)) and len(set(fields)) == len(fields)
    return len(numbers) > len(fields) / 2 and not may_be_names


def _names(path: Path, found: Sequence[str]) -> list[str]:
    """Return the names of the columns, with control characters escaped. Raises DataError if two are the same."""
    names = [one_line(name) for name in found]
    name, count = next(iter(Counter(names).most_common(1)), ("", 0))
    if count > 1:
        raise DataError(f"{path}: {count} columns are called '{name}'; give each column a different name")
    return names


def _info(name: str, num_rows: int, kind: Any) -> VariableInfo:
    if str(kind).startswith((*_DATES, _DURATION)):
        attributes = OF_DURATIONS if str(kind).startswith(_DURATION) else OF_DATES
        return VariableInfo(name, ("",), (num_rows,), "<f8", dict(attributes))
    if str(kind).startswith(_AS_FLOATS):
        return VariableInfo(name, ("",), (num_rows,), "<f8")
    dtype = np.dtype(object)
    with suppress(NotImplementedError, TypeError):  # lists, structures and other types without a numpy type
        # A column without any value has no type: all its values are missing.
        dtype = np.dtype(np.float64 if str(kind) == "null" else kind.to_pandas_dtype())
    return VariableInfo(name, ("",), (num_rows,), dtype.str)


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Return a column (N,), NaN where missing, dates as days; text stays text."""
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)  # otherwise a null index would become the first value
    values: npt.NDArray[Any] = (
        column.cast("float64") if str(column.type).startswith(_AS_FLOATS) else column
    ).to_numpy()
    values = numbers_of_array(values)[0]
    return values.astype(np.float64) if values.dtype == object and column.null_count == len(column) else values
