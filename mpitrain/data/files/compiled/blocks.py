"""Compressed blocks of an HDF5 dataset, decompressed here: the library's own filters take turns behind one lock.

HDF5 file format specification, "Data layout message" and "Filter pipeline message": deflate is zlib's format, shuffle
puts the first bytes of all numbers of a block first, then the second ones. Bit i of a block's filter mask says that
filter i was left out. Blocks at the edges are stored whole.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.compiled.build import KERNELS
from mpitrain.data.files.compiled.contiguous import ContiguousValues, open_contiguous
from mpitrain.data.files.variable import Slices, ranges_of

Bytes = bytes | bytearray
Inflate = Callable[[bytes, int], Bytes]
Lock = Callable[[], AbstractContextManager[Any]]
# Below that, a call of Python's costs more than it saves.
SMALLEST_BLOCK_BYTES = 16 * 2**10
_LARGEST_BLOCK_BYTES = 2**31


class DamagedBlockError(Exception):
    """A block that HDF5 would read without a word, leaving numbers out or making some up."""


class CompressedBlocks:
    """One dataset whose blocks are compressed by deflate, with or without shuffle before it."""

    def __init__(self, dataset: Any, inflate: Inflate, is_shuffled: bool) -> None:
        """See `open_blocks`."""
        self._dataset, self._inflate, self._is_shuffled = dataset, inflate, is_shuffled
        self._dtype: np.dtype[Any] = dataset.dtype
        self._shape: tuple[int, ...] = dataset.shape
        self._chunks: tuple[int, ...] = dataset.chunks
        self._block_bytes = math.prod(self._chunks) * self._dtype.itemsize

    def read(self, slices: Slices, library: Lock) -> npt.NDArray[Any] | None:
        """Return a part as stored; None where anything is not as expected: the library itself then says what.

        HDF5 is called inside `library()`; blocks are decompressed outside of it, and of Python's lock. Raises
        DamagedBlockError for a block of another size than its shape.
        """
        ranges = ranges_of(slices, self._shape)
        if any(step != 1 for _, _, step in ranges):
            return None
        bounds = [(start, max(start, stop)) for start, stop, _ in ranges]
        found = np.empty([stop - start for start, stop in bounds], self._dtype)
        try:
            for corner in self._corners(bounds):
                self._read_block(corner, bounds, found, library)
        except DamagedBlockError:
            raise
        except Exception:  # a damaged block: whatever the libraries stumble over
            return None
        return found

    def _corners(self, bounds: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
        """Yield the first position of each block that the part touches."""
        return itertools.product(
            *(
                range(start // length * length, stop, length)
                for (start, stop), length in zip(bounds, self._chunks, strict=True)
            )
        )

    def _read_block(
        self, corner: tuple[int, ...], bounds: list[tuple[int, int]], found: npt.NDArray[Any], library: Lock
    ) -> None:
        inside = [
            (max(first, start), min(first + length, stop))
            for first, length, (start, stop) in zip(corner, self._chunks, bounds, strict=True)
        ]
        target = found[tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inside, bounds, strict=True))]
        with library():
            if self._dataset.id.get_chunk_info_by_coord(corner).byte_offset is None:
                # Never written: the fill value, of which HDF5 has its own rules.
                target[...] = self._dataset[tuple(slice(a, b) for a, b in inside)]
                return
            mask, packed = self._dataset.id.read_direct_chunk(corner)
        is_whole = all(b - a == length for (a, b), length in zip(inside, self._chunks, strict=True))
        if is_whole and target.flags.c_contiguous:
            self._unpack(packed, mask, target)
            return
        block = np.empty(self._chunks, self._dtype)
        self._unpack(packed, mask, block)
        target[...] = block[tuple(slice(a - first, b - first) for (a, b), first in zip(inside, corner, strict=True))]

    def _unpack(self, packed: bytes, mask: int, values: npt.NDArray[Any]) -> None:
        """Set a block's values. Raises where the block is damaged or of another size."""
        shuffle_bit, deflate_bit = (1, 2) if self._is_shuffled else (0, 1)
        plain = packed if mask & deflate_bit else self._inflated(packed)
        if len(plain) != self._block_bytes:
            raise DamagedBlockError(f"a block holds other than its {self._block_bytes} bytes")
        if self._is_shuffled and not mask & shuffle_bit:
            unshuffle(plain, values)
        else:
            values.reshape(-1).view(np.uint8)[:] = np.frombuffer(plain, np.uint8)

    def _inflated(self, packed: bytes) -> Bytes:
        try:
            return self._inflate(packed, self._block_bytes)
        except Exception:
            # One byte more than there should be tells a stream that is too long from a damaged one, which raises here.
            return zlib.decompressobj().decompress(packed, self._block_bytes + 1)


def unshuffle(planes: Bytes, values: npt.NDArray[Any]) -> None:
    """Set contiguous `values` from the first bytes of all of them, then the second ones, and so on."""
    item_bytes, library = values.dtype.itemsize, KERNELS.after(len(planes))
    source = np.frombuffer(planes, np.uint8)
    if library is None:
        values.reshape(-1).view(np.uint8).reshape(-1, item_bytes)[:] = source.reshape(item_bytes, -1).T
    else:
        library.unshuffle(source.ctypes.data, values.size, item_bytes, values.ctypes.data)


def open_blocks(dataset: Any) -> CompressedBlocks | ContiguousValues | None:
    """Return what reads an h5py dataset without the library; None where the library's own way is the one to take.

    That is, of datasets in blocks: another filter than deflate, or shuffle and deflate; other values than plain
    numbers; small or huge blocks; no package `deflate`.
    """
    if dataset.chunks is None:
        return open_contiguous(dataset)
    if dataset.dtype.kind not in "iuf" or dataset.dtype.itemsize > 8:
        return None
    block_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if not SMALLEST_BLOCK_BYTES <= block_bytes <= _LARGEST_BLOCK_BYTES:
        return None
    inflate, filters = _find_inflate(), _filters_of(dataset)
    if inflate is None or filters is None or not _is_plain(dataset):
        return None
    return CompressedBlocks(dataset, inflate, len(filters) == 2)


def _filters_of(dataset: Any) -> tuple[int, ...] | None:
    """Return the filters where they are deflate, or shuffle and then deflate; else None."""
    import h5py

    steps = dataset.id.get_create_plist()
    found = [steps.get_filter(number) for number in range(steps.get_nfilters())]
    filters = tuple(one[0] for one in found)
    if filters == (h5py.h5z.FILTER_DEFLATE,):
        return filters
    if filters != (h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE):
        return None
    return filters if tuple(found[0][2]) == (dataset.dtype.itemsize,) else None


def _is_plain(dataset: Any) -> bool:
    """Tell whether the file's numbers are numpy's, bit by bit: HDF5 has some of 12 bits, or with the sign elsewhere."""
    import h5py

    return bool(h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()))


def _find_inflate() -> Inflate | None:
    """Return libdeflate's decompression, from the package `deflate`; it works without Python's lock."""
    with suppress(ImportError):
        import deflate

        inflate: Inflate = deflate.zlib_decompress
        return inflate
    return None
