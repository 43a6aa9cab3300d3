"""Gathering and scattering of rows at any positions, as needed to shuffle samples.

n  rows      m  positions
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.compiled.build import KERNELS

Array = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


def gather_rows(column: Array, places: Places) -> Array:
    """Return the rows of `column` (n, ...) at `places` (m,), in that order; each is one of 0 ... n - 1."""
    column, row_bytes = np.ascontiguousarray(column), _row_bytes(column)
    found = np.empty((len(places), *column.shape[1:]), column.dtype)
    library = KERNELS.after(found.nbytes)
    if not found.size:
        return found
    if library is None:
        _as_items(found, row_bytes)[:] = _as_items(column, row_bytes)[places]
    else:
        places = np.ascontiguousarray(places)
        library.gather_rows(column.ctypes.data, places.ctypes.data, len(places), row_bytes, found.ctypes.data)
    return found


def scatter_rows(column: Array, places: Places, rows: Array) -> None:
    """Set the rows of `column` (n, ...), contiguous, at `places` (m,) to `rows` (m, ...) of the same type."""
    assert column.flags.c_contiguous
    assert column.dtype == rows.dtype
    assert len(places) == len(rows)
    row_bytes, library = _row_bytes(column), KERNELS.after(rows.nbytes)
    rows, places = np.ascontiguousarray(rows), np.ascontiguousarray(places)
    if not rows.size:
        return
    if library is None:
        _as_items(column, row_bytes)[places] = _as_items(rows, row_bytes)
    else:
        library.scatter_rows(rows.ctypes.data, places.ctypes.data, len(places), row_bytes, column.ctypes.data)


def _row_bytes(column: Array) -> int:
    return column.dtype.itemsize * math.prod(column.shape[1:])


def _as_items(column: Array, row_bytes: int) -> Array:
    """Return a view (n,) of an array (n, ...) with one item per row, which numpy moves as a unit."""
    return column.reshape(len(column), -1).view(np.dtype((np.void, row_bytes))).reshape(-1)
