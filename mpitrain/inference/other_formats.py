"""Predictions in other formats than NetCDF: rows as CSV or Parquet, a grid as a Zarr store; made of the NetCDF file.

N  rows      L  levels
"""

from __future__ import annotations

import datetime
import errno
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.times import dates_of
from mpitrain.data.units import counts_from_a_date
from mpitrain.durable_files import check_ending, replacing, sync_file, temporary_name
from mpitrain.errors import MissingDependencyError, writing

_ROWS_AT_ONCE = 65_536
NETCDF, _STORE = (".nc", ".nc4", ".h5"), ".zarr"
ROWS = ".csv", ".parquet"
_PACKAGES = dict.fromkeys(ROWS, ("pyarrow",)) | {_STORE: ("xarray", "zarr")}


def check_format(path: Path) -> None:
    """Raise OSError for an ending of no format, MissingDependencyError where one needs a package that is missing."""
    check_ending(path, (*NETCDF, *ROWS, _STORE))
    for package in _PACKAGES.get(path.suffix, ()):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingDependencyError(f"{path}: needs {package}: python -m pip install {package}") from error


def check_store(path: Path, overwrite: bool) -> None:
    """Raise OSError where a Zarr store must not take the place of what is there: only of another store, if asked to."""
    is_store = any((path / name).is_file() for name in ("zarr.json", ".zgroup"))
    if path.exists() and not (is_store and overwrite):
        raise OSError(errno.EEXIST, f"{path.name} is there; --overwrite replaces a Zarr store")


def write_in_format(written: Path, path: Path) -> None:
    """Write the prediction in a NetCDF file to `path`, whole or not at all. For the root. Raises OutputError."""
    with writing(path, "check the folder, its permissions and space", (OSError, RuntimeError, ValueError)):
        if path.suffix == _STORE:
            _write_store(written, path)
        else:
            with replacing(path) as temporary:
                _write_rows(path.suffix, written, temporary)
                sync_file(temporary)


def _write_store(written: Path, path: Path) -> None:
    import xarray

    temporary = temporary_name(path)
    try:
        with xarray.open_dataset(written, decode_times=False) as found:
            found.to_zarr(temporary, mode="w-", consolidated=False)
        if path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_rows(ending: str, written: Path, path: Path) -> None:
    import netCDF4
    import pyarrow
    from pyarrow import csv, parquet

    with netCDF4.Dataset(str(written)) as file:
        (rows,) = {one.dimensions[0] for one in file.variables.values() if one.dimensions} - set(_levels_of(file))
        columns = [one for one in file.variables.values() if one.dimensions[:1] == (rows,)]
        total = len(file.dimensions[rows])
        writer: Any = None
        try:
            for first in range(0, max(1, total), _ROWS_AT_ONCE):
                part = slice(first, first + _ROWS_AT_ONCE)
                found = dict(pair for one in columns for pair in _columns_of(file, one, part))
                table = pyarrow.table({name: pyarrow.array(values, from_pandas=True) for name, values in found.items()})
                table = table.replace_schema_metadata({name: str(file.getncattr(name)) for name in file.ncattrs()})
                if writer is None:
                    of_kind = csv.CSVWriter if ending == ".csv" else parquet.ParquetWriter
                    writer = of_kind(str(path), table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _levels_of(file: Any) -> Iterator[str]:
    """Yield the dimensions along which variables have several levels."""
    for one in file.variables.values():
        yield from one.dimensions[1:]


def _columns_of(file: Any, variable: Any, part: slice) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield names and values (N,) of the columns that a variable (N,) or (N, L) makes: dates and roles as text."""
    name, units = variable.name, getattr(variable, "units", "")
    values = np.ma.asarray(variable[part])
    if hasattr(variable, "flag_meanings"):
        yield name, np.array(variable.flag_meanings.split())[values.astype(np.int64)]
    elif counts_from_a_date(units):
        dates = dates_of(values, units, getattr(variable, "calendar", "standard"))
        yield (
            name,
            np.array([None if date is np.ma.masked else _iso(date) for date in np.ma.ravel(dates)], dtype=object),
        )
    elif values.ndim == 1:
        yield name, _filled(values)
    else:
        dimension = variable.dimensions[1]
        levels = file[dimension][:] if dimension in file.variables else np.arange(values.shape[1])
        for number, level in enumerate(levels):
            yield f"{name}[{dimension}={level:g}]", _filled(values[:, number])


def _iso(date: Any) -> str:
    """Return a date of cftime as text, to the millisecond: numbers of days are no more exact."""
    rounded = date + datetime.timedelta(microseconds=500)
    return str(rounded.replace(microsecond=rounded.microsecond // 1000 * 1000).isoformat())


def _filled(values: Any) -> npt.NDArray[Any]:
    return values.filled(np.nan) if values.dtype.kind == "f" else values.filled()  # type: ignore[no-any-return]
