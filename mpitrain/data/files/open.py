"""Which reader a file needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mpitrain.data.files.arrays import open_npz, open_pt
from mpitrain.data.files.columns import open_csv, open_parquet
from mpitrain.data.files.hdf5 import Hdf5File, is_hdf5
from mpitrain.data.files.netcdf import NetcdfFile
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.files.zarr import ZarrStore, is_zarr
from mpitrain.errors import DataError

_BY_SUFFIX: dict[str, Callable[[Path], FieldFile]] = {
    ".npz": open_npz,
    ".pt": open_pt,
    ".pth": open_pt,
    ".h5": Hdf5File,
    ".hdf5": Hdf5File,
    ".he5": Hdf5File,
    ".hdf": Hdf5File,
    ".nc": NetcdfFile,
    ".nc4": NetcdfFile,
    ".cdf": NetcdfFile,
    ".csv": open_csv,
    ".parquet": open_parquet,
    ".pq": open_parquet,
}


def open_field_file(path: Path) -> FieldFile:
    """Open a file by its name's end, or by its first bytes where that says nothing.

    Raises DataError where it is missing, unreadable, damaged or of no known kind.
    """
    if is_zarr(path):
        return ZarrStore(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; set data.data_path to an existing file, a pattern or a list of these")
    try:
        return _reader_of(path)(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be opened ({error.strerror or error}); check the file's permissions"
        ) from error


def needs_library(path: Path) -> bool:
    """Tell whether a library in C reads the file, which a damaged one may crash. Raises OSError and DataError."""
    return _reader_of(path) in (Hdf5File, NetcdfFile)


def _reader_of(path: Path) -> Callable[[Path], FieldFile]:
    return _BY_SUFFIX.get(path.suffix.lower()) or _by_content(path)


def _by_content(path: Path) -> Callable[[Path], FieldFile]:
    with path.open("rb") as file:
        start = file.read(4)
    if start[:3] == b"CDF" or is_hdf5(path):
        return NetcdfFile
    if start == b"PK\x03\x04":
        return open_npz
    raise DataError(
        f"{path}: neither NetCDF nor HDF5 nor .npz by its first bytes; end its name in one of {', '.join(_BY_SUFFIX)}"
    )
