"""Convert a NetCDF file of predictions to another format: rows to CSV or Parquet, a grid to a Zarr store.

N  rows      L  levels
"""

from __future__ import annotations

import datetime
import errno
import importlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.cf import TIME
from mpitrain.data.describe.times import dates_of
from mpitrain.data.units import counts_from_a_date
from mpitrain.durable_files import check_ending, check_output, replacing, sync_file, temporary_name
from mpitrain.errors import MissingDependencyError, UserError

_ROWS_AT_ONCE = 65_536
Layout = Literal["auto", "data", "grid", "rows"]
"""How points are written: `data` on a grid if the data has one; `auto` too, unless a fixed layout has rows."""
NETCDF, _STORE = (".nc", ".nc4", ".h5", ".hdf5"), ".zarr"
ROWS = ".csv", ".parquet"
_MARK_OF_ROWS = r'\A([^\n]*"grid_index"[^\n]*_predicted["\[]|[^\n]*"aice_ffnn")'
_PACKAGES = dict.fromkeys(ROWS, ("pyarrow",)) | {_STORE: ("xarray", "zarr")}


def check_format(path: Path) -> None:
    """Raise OSError if the ending is of no known format, MissingDependencyError if the format's package is missing."""
    check_ending(path, (*NETCDF, *ROWS, _STORE))
    for package in _PACKAGES.get(path.suffix, ()):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingDependencyError(f"{path}: needs {package}: python -m pip install {package}") from error


def check_format_output(path: Path, mark: str, inputs: Iterable[Path], overwrite: bool) -> None:
    """Raise OSError if a prediction must not replace the existing file or store (see `check_output`).

    `mark` is a pattern for the attributes of a prediction. A CSV file is recognised by its first line instead, a Zarr
    store by its file of attributes.
    """
    check_format(path)
    if path.suffix != _STORE or not os.path.lexists(path):
        check_output(path, _MARK_OF_ROWS if path.suffix == ".csv" else mark, inputs, overwrite)
        return
    inside = next((path / name for name in ("zarr.json", ".zattrs", ".zgroup") if (path / name).is_file()), None)
    if inside is None or path.is_symlink():
        raise OSError(errno.EEXIST, f"{path.name} exists and is not a Zarr store; --overwrite replaces only a store")
    given = list(inputs)
    if any(os.path.realpath(one).startswith(f"{os.path.realpath(path)}/") for one in given):
        raise OSError(errno.EEXIST, f"{path.name} holds an input of this command")
    check_output(inside, mark, given, overwrite)


def layout_in(path: Path, layout: Layout, kind: str) -> Layout:
    """Return the layout for the format of `path`; `kind` is that of `data.samples`.

    Raises UserError if the format cannot hold them: a format of rows holds neither fields nor a grid.
    """
    if path.suffix not in ROWS:
        return layout
    if kind == "fields" or layout == "grid":
        raise UserError(f"{path}: holds rows, not a grid or fields; give a name that ends in .nc or .zarr")
    return "rows"


def write_in_format(written: Path, path: Path) -> None:
    """Convert the NetCDF file `written` to `path`, wholly or not at all. For the root. Raises OSError and others."""
    if path.suffix == _STORE:
        _write_store(written, path)
    else:
        with replacing(path) as temporary:
            _write_rows(path.suffix, written, temporary)
            sync_file(temporary)


def _write_store(written: Path, path: Path) -> None:
    import xarray

    temporary, before = temporary_name(path), temporary_name(path)
    try:
        with xarray.open_dataset(written, decode_times=False) as found:
            found.to_zarr(temporary, mode="w-", consolidated=False)
        if path.is_dir():
            path.replace(before)
        temporary.replace(path)
    finally:
        if before.exists() and not path.exists():
            before.replace(path)
        for one in (temporary, before):
            shutil.rmtree(one, ignore_errors=True)


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
                kinds = {name: pyarrow.string() if one.dtype.kind in "OU" else None for name, one in found.items()}
                arrays = [pyarrow.array(one, kinds[name], from_pandas=True) for name, one in found.items()]
                table = pyarrow.table(arrays, names=list(found))
                table = table.replace_schema_metadata({name: str(file.getncattr(name)) for name in file.ncattrs()})
                if writer is None:
                    of_kind = csv.CSVWriter if ending == ".csv" else parquet.ParquetWriter
                    writer = of_kind(str(path), table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _levels_of(file: Any) -> Iterator[str]:
    """Yield the dimensions of variables after the first: those of levels."""
    for one in file.variables.values():
        yield from one.dimensions[1:]


def _columns_of(file: Any, variable: Any, part: slice) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield names and values (N,) of the columns of a variable (N,) or (N, L); times and roles become text."""
    name, units = variable.name, getattr(variable, "units", "")
    values = np.ma.asarray(variable[part])
    if hasattr(variable, "flag_meanings"):
        yield name, np.array(variable.flag_meanings.split())[values.astype(np.int64)]
    elif name == TIME and counts_from_a_date(units):
        dates = dates_of(values, units, getattr(variable, "calendar", "standard"))
        yield (
            name,
            np.array([None if date is np.ma.masked else _iso(date) for date in np.ma.ravel(dates)], dtype=object),
        )
    elif values.ndim == 1:
        yield name, _filled(values)
    else:
        dimension = variable.dimensions[1]
        levels = np.ma.masked_invalid(file[dimension][:]) if dimension in file.variables else np.ma.masked_all(1)
        digits = ".6g" if len({f"{one:.6g}" for one in np.ma.compressed(levels)}) == values.shape[1] else ".15g"
        is_plain = not np.ma.is_masked(levels) and len(np.unique(levels)) == values.shape[1]
        for number in range(values.shape[1]):
            place = f"{dimension}={levels[number]:{digits}}" if is_plain else str(number)
            yield f"{name}[{place}]", _filled(values[:, number])


def _iso(date: Any) -> str:
    """Return a cftime date as text, rounded to milliseconds: times in days are not more exact."""
    rounded = date + datetime.timedelta(microseconds=500)
    return str(rounded.replace(microsecond=rounded.microsecond // 1000 * 1000).isoformat())


def _filled(values: Any) -> npt.NDArray[Any]:
    return values.filled(np.nan) if values.dtype.kind == "f" else values.filled()  # type: ignore[no-any-return]
