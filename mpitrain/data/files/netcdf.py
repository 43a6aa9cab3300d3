"""Reader of NetCDF files, classic and NetCDF-4, based on netCDF4 and h5py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.hdf5 import (
    VariableValues,
    can_unpack,
    forgo_locks,
    is_hdf5,
    list_variables,
    open_hdf5,
    whole_file,
)
from mpitrain.data.files.netcdf_classic import read_variable_ends
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import Slices, VariableInfo, Variables, bytes_of, plain_attributes, reason_too_large
from mpitrain.errors import DataError, one_line

# The NetCDF library is not thread-safe, and a second thread may be reading ahead.
_lock = threading.Lock()
# Handles of files that were garbage-collected; the next call closes them. A finaliser must not wait for the lock: it
# may run inside h5py, and another thread that holds `_lock` may be waiting for the lock of h5py.
_forgotten: list[Any] = []


class NetcdfFile:
    """One open NetCDF file. Values of NetCDF-4 are read through h5py, which has far less overhead per call."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises DataError if it is not a complete NetCDF file."""
        forgo_locks()
        import netCDF4

        self.path, self.stored_sum = path, StoredSum()
        with whole_file(path, "NetCDF"):
            # NetCDF-4 is HDF5, which can refer to any other file: `list_variables` refuses these references.
            self._hdf5 = open_hdf5(path) if is_hdf5(path) else None
            datasets, self.refused = list_variables(self._hdf5) if self._hdf5 else ({}, {})
            # Before the library opens the file: it may spend hours on a damaged header.
            self._ends = read_variable_ends(path)
            with _library():
                self._dataset = netCDF4.Dataset(str(path))
                self._dataset.set_auto_maskandscale(False)
                stored = {name: one for name, one in _walk(self._dataset) if name not in self.refused}
                self.variables = Variables((name, _describe(name, one)) for name, one in stored.items())
        self._refuse_what_is_not_there()
        stored |= {
            name: datasets[name]
            for name, info in self.variables.items()
            # A variable shorter than its unlimited dimension ends in fill values, which only the NetCDF library adds.
            if name in datasets and datasets[name].shape == info.shape and can_unpack(datasets[name])
        }
        self._values = VariableValues(path, stored, _library)

    def _refuse_what_is_not_there(self) -> None:
        for name, info in list(self.variables.items()):
            claimed = max(prod(info.shape), prod(info.chunk_shape or ())) * info.item_bytes
            if reason := reason_too_large(claimed, lambda: bytes_of(self.path)):
                self.refused[name] = reason
                del self.variables[name]

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored. Raises DataError if the file is truncated or damaged."""
        if name in self._ends and self._ends[name] > (size_bytes := self.path.stat().st_size):
            raise DataError(
                f"{self.path}: cannot be read to the end: variable '{name}' ends at byte {self._ends[name]}, the file "
                f"ends at byte {size_bytes}; is the file complete?"
            )
        return self._values.read(name, slices, self.stored_sum)

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return None

    def close(self) -> None:
        """Close the file."""
        with _library():
            if self._dataset.isopen():
                self._dataset.close()
        if self._hdf5 is not None:
            self._hdf5.close()

    def __del__(self) -> None:
        # Otherwise the handle's own finaliser would close it while another thread reads.
        if hasattr(self, "_dataset") and self._dataset.isopen():
            _forgotten.append(self._dataset)


@contextmanager
def _library() -> Iterator[None]:
    """Hold the lock of the library, so that only one thread at a time calls it."""
    with _lock:
        while _forgotten:
            _forgotten.pop().close()
        yield


def _walk(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, variable in group.variables.items():
        yield above + one_line(name), variable
    for name, below in group.groups.items():
        yield from _walk(below, f"{above}{one_line(name)}/")


def _describe(name: str, variable: Any) -> VariableInfo:
    import netCDF4

    chunking = variable.chunking()
    # A variable of length 0 along an unlimited dimension still has chunks; contiguous and classic ones have none.
    chunk_shape = tuple(chunking) if isinstance(chunking, list | tuple) else None
    # For a variable-length type `dtype` is the type of its items; its values are arrays.
    is_plain = isinstance(variable.dtype, np.dtype) and not isinstance(variable.datatype, netCDF4.VLType)
    dtype = variable.dtype.str if is_plain else "O"
    # As in the library: bytes have no default fill value, because all their values may be valid.
    fill = netCDF4.default_fillvals.get(dtype[1:]) if dtype[1:] not in ("i1", "u1") else None
    return VariableInfo(
        name=name,
        dimensions=tuple(map(one_line, variable.dimensions)),
        shape=tuple(int(size) for size in variable.shape),
        dtype=dtype,
        attributes=plain_attributes((key, variable.getncattr(key)) for key in variable.ncattrs()),
        chunk_shape=chunk_shape,
        unlimited=frozenset(axis for axis, dimension in enumerate(variable.get_dims()) if dimension.isunlimited()),
        default_fill=fill if isinstance(fill, int | float) else None,
    )
