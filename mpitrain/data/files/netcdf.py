"""NetCDF files, classic and NetCDF-4, through netCDF4."""

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
from mpitrain.data.files.variable import Slices, VariableInfo, Variables, bytes_of, plain_attributes, why_not_there
from mpitrain.errors import DataError, one_line

# The NetCDF library is not safe to call from two threads, of which the second would be one that reads ahead.
_lock = threading.Lock()
# Handles whose last user has forgotten them: closed by the next call. A finaliser must not wait for the lock: it runs
# wherever a thread happens to be, also inside h5py, whose own lock another thread waits for with this one in hand.
_forgotten: list[Any] = []


class NetcdfFile:
    """One open NetCDF file. Values of NetCDF-4 come through h5py, which spends far less on each call."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises DataError where it is no whole NetCDF file."""
        forgo_locks()
        import netCDF4

        self.path, self.stored_sum = path, StoredSum()
        with whole_file(path, "NetCDF"):
            # NetCDF-4 is HDF5, and HDF5 can point at any other file.
            self._hdf5 = open_hdf5(path) if is_hdf5(path) else None
            datasets, self.refused = list_variables(self._hdf5) if self._hdf5 else ({}, {})
            # Before the library, which goes through a damaged header for hours.
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
            # A variable that is shorter than its unlimited dimension ends in fill values, which NetCDF alone knows.
            if name in datasets and datasets[name].shape == info.shape and can_unpack(datasets[name])
        }
        self._values = VariableValues(path, stored, _library)

    def _refuse_what_is_not_there(self) -> None:
        for name, info in list(self.variables.items()):
            claimed = max(prod(info.shape), prod(info.chunk_shape or ())) * info.item_bytes
            if reason := why_not_there(claimed, lambda: bytes_of(self.path)):
                self.refused[name] = reason
                del self.variables[name]

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored."""
        if name in self._ends and self._ends[name] > (size_bytes := self.path.stat().st_size):
            raise DataError(
                f"{self.path}: cannot be read to the end: variable '{name}' ends at byte {self._ends[name]}, the file "
                f"at {size_bytes}; is the file complete?"
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
        # Left to itself, the library's own handle would be closed while another thread reads.
        if hasattr(self, "_dataset") and self._dataset.isopen():
            _forgotten.append(self._dataset)


@contextmanager
def _library() -> Iterator[None]:
    """Let one thread at a time call the library."""
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
    # A type of variable length has the type of its items here, and values that are arrays.
    is_plain = isinstance(variable.dtype, np.dtype) and not isinstance(variable.datatype, netCDF4.VLType)
    dtype = variable.dtype.str if is_plain else "O"
    # As the library itself: bytes have no default fill value, all their values may be meant.
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
