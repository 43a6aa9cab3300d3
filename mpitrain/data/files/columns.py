"""Tables of columns, CSV and Parquet, through pyarrow: each column is a variable, each row a place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.arrays import ArrayFile
from mpitrain.errors import DataError, MissingDependencyError, one_line


def open_csv(path: Path) -> ArrayFile:
    """Open a CSV file with a line of names. Raises DataError where it is none, MissingDependencyError."""
    return _open(path, "CSV", lambda: _pyarrow(path, "csv").read_csv(str(path)))


def open_parquet(path: Path) -> ArrayFile:
    """Open a Parquet file. Raises DataError where it is none, MissingDependencyError."""
    return _open(path, "Parquet", lambda: _pyarrow(path, "parquet").read_table(str(path)))


def _pyarrow(path: Path, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise MissingDependencyError(f"{path}: CSV and Parquet need pyarrow: python -m pip install pyarrow") from error


def _open(path: Path, kind: str, read: Any) -> ArrayFile:
    try:
        table = read()
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are of these kinds
        reason = one_line(str(error).splitlines()[0])
        raise DataError(f"{path}: cannot be read as {kind} ({reason}); give a {kind} file of named columns") from error
    columns = {one_line(name): _numbers(table.column(name)) for name in table.column_names}
    return ArrayFile(path, columns, whole=False)


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Return a column (N,), NaN where it has nothing; text stays text, which no variable may be."""
    values: npt.NDArray[Any] = column.to_numpy()
    return values.astype(np.float64) if values.dtype == object and column.null_count == len(column) else values
