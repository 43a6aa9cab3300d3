"""An HDF5 dataset whose values lie in the file as they lie in memory: read by the system, without the library's lock.

HDF5 file format specification, "Data layout message": the values of a contiguous dataset follow one another.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.variable import Slices, ranges_of

SMALLEST_PART_BYTES = 16 * 2**10  # below that, a call of Python's costs more than it saves


class CutOffError(Exception):
    """The file ends before the values do."""


class ContiguousValues:
    """One contiguous dataset of an open file, which must stay open."""

    def __init__(self, dataset: Any, descriptor: int, offset: int) -> None:
        """See `open_contiguous`."""
        self._dtype: np.dtype[Any] = dataset.dtype
        self._shape: tuple[int, ...] = dataset.shape
        self._descriptor, self._offset = descriptor, offset

    def read(self, slices: Slices, _library: object = None) -> npt.NDArray[Any] | None:
        """Return a part as stored; None where its values do not follow one another, or are few.

        Raises CutOffError where the file ends too early, OSError where it cannot be read.
        """
        ranges = ranges_of(slices, self._shape)
        shape = [max(0, stop - start) for start, stop, _ in ranges]
        num_bytes = math.prod(shape) * self._dtype.itemsize
        if num_bytes < SMALLEST_PART_BYTES or not self._is_in_one_piece(ranges, shape):
            return None
        steps = [math.prod(self._shape[axis + 1 :]) for axis in range(len(shape))]
        first = sum(start * step for (start, _, _), step in zip(ranges, steps, strict=True))
        found = np.empty(shape, self._dtype)
        read_bytes(self._descriptor, self._offset + first * self._dtype.itemsize, found.reshape(-1).view(np.uint8))
        return found

    def _is_in_one_piece(self, ranges: list[tuple[int, int, int]], shape: list[int]) -> bool:
        """Tell whether one range is followed by whole axes only, and preceded by single places only."""
        first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
        whole = all(shape[axis] == self._shape[axis] for axis in range(first + 1, len(shape)))
        return whole and all(step == 1 for _, _, step in ranges)


def read_bytes(descriptor: int, offset: int, values: npt.NDArray[np.uint8]) -> None:
    """Set contiguous `values` (n,) to the bytes of an open file from `offset` on; other threads go on meanwhile.

    Raises CutOffError where the file ends too early, OSError where it cannot be read.
    """
    left: Any = values
    while len(left):
        count = os.preadv(descriptor, [left], offset)
        if count == 0:
            raise CutOffError(f"the file ends {len(left)} bytes too early")
        left, offset = left[count:], offset + count


def descriptor_of(dataset: Any) -> int | None:
    """Return the descriptor of an h5py dataset's open file; None where places in it are not the library's offsets."""
    # A block of the user's before the file, or a file in parts, has other offsets.
    if dataset.file.userblock_size or dataset.file.driver != "sec2":
        return None
    return int(dataset.file.id.get_vfd_handle())


def is_plain(dataset: Any) -> bool:
    """Tell whether the file's numbers are numpy's, bit by bit: HDF5 has some of 12 bits, or with the sign elsewhere."""
    import h5py

    return bool(h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()))


def open_contiguous(dataset: Any) -> ContiguousValues | None:
    """Return what reads a contiguous h5py dataset of plain numbers; None where the library's own way is the one."""
    if dataset.chunks is not None or dataset.dtype.kind not in "iuf" or dataset.external or not is_plain(dataset):
        return None
    with suppress(Exception):  # whatever the library cannot tell of it
        offset, descriptor = dataset.id.get_offset(), descriptor_of(dataset)
        if offset is not None and descriptor is not None:
            return ContiguousValues(dataset, descriptor, offset)
    return None
