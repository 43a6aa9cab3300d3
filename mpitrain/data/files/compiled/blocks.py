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
from mpitrain.data.files.compiled.contiguous import (
    ContiguousValues,
    descriptor_of,
    is_plain,
    open_contiguous,
    read_bytes,
)
from mpitrain.data.files.variable import Slices, ranges_of

Bytes = bytes | bytearray | npt.NDArray[np.uint8]
Inflate = Callable[[Bytes, int], Bytes]
Lock = Callable[[], AbstractContextManager[Any]]
# Below that, a call of Python's costs more than it saves.
SMALLEST_BLOCK_BYTES = 16 * 2**10
_LARGEST_BLOCK_BYTES = 2**31
_MOST_BLOCKS = 2**22


class DamagedBlockError(Exception):
    """A block that HDF5 would read without a word, leaving numbers out or making some up."""


class BlockPlaces:
    """Where the blocks of a dataset lie in its file; the library would look through all of them for each one."""

    def __init__(self, dataset: Any) -> None:
        """Ask the library, once for all blocks."""
        shape = [-(-size // length) for size, length in zip(dataset.shape, dataset.chunks, strict=True)]
        self._offset, self._size = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        self._mask = np.zeros(shape, np.uint32)

        def keep(block: Any) -> None:
            number = tuple(first // length for first, length in zip(block.chunk_offset, dataset.chunks, strict=True))
            self._offset[number], self._size[number] = block.byte_offset, block.size
            self._mask[number] = block.filter_mask

        dataset.id.chunk_iter(keep)

    def find(self, number: tuple[int, ...]) -> tuple[int, int, int] | None:
        """Return a block's place in the file, its bytes there and its filter mask; None where it was never written."""
        offset = int(self._offset[number])
        return None if offset < 0 else (offset, int(self._size[number]), int(self._mask[number]))


class CompressedBlocks:
    """One dataset of an open file, which must stay open; its blocks are compressed, with or without shuffle before."""

    def __init__(self, dataset: Any, descriptor: int, inflate: Inflate, is_shuffled: bool) -> None:
        """See `open_blocks`."""
        self._dataset, self._inflate, self._is_shuffled = dataset, inflate, is_shuffled
        self._descriptor = descriptor
        self._places: BlockPlaces | None = None
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
        place = self._find(corner, library)
        if place is None:
            # Never written: the fill value, of which HDF5 has its own rules.
            with library():
                target[...] = self._dataset[tuple(slice(a, b) for a, b in inside)]
            return
        offset, num_bytes, mask = place
        packed = np.empty(num_bytes, np.uint8)
        read_bytes(self._descriptor, offset, packed)
        is_whole = all(b - a == length for (a, b), length in zip(inside, self._chunks, strict=True))
        if is_whole and target.flags.c_contiguous:
            self._unpack(packed, mask, target)
            return
        block = np.empty(self._chunks, self._dtype)
        self._unpack(packed, mask, block)
        target[...] = block[tuple(slice(a - first, b - first) for (a, b), first in zip(inside, corner, strict=True))]

    def _find(self, corner: tuple[int, ...], library: Lock) -> tuple[int, int, int] | None:
        if self._places is None:
            with library():
                self._places = BlockPlaces(self._dataset)
        place = self._places.find(tuple(first // length for first, length in zip(corner, self._chunks, strict=True)))
        if place is not None and place[1] > _largest_packed_bytes(self._block_bytes):
            raise ValueError(f"a block of {self._block_bytes} bytes takes {place[1]} in the file")
        return place

    def _unpack(self, packed: Bytes, mask: int, values: npt.NDArray[Any]) -> None:
        """Set a block's values. Raises where the block is damaged or of another size."""
        shuffle_bit, deflate_bit = (1, 2) if self._is_shuffled else (0, 1)
        plain = packed if mask & deflate_bit else self._inflated(packed)
        if len(plain) != self._block_bytes:
            raise DamagedBlockError(f"a block holds other than its {self._block_bytes} bytes")
        if self._is_shuffled and not mask & shuffle_bit:
            unshuffle(plain, values)
        else:
            values.reshape(-1).view(np.uint8)[:] = np.frombuffer(plain, np.uint8)

    def _inflated(self, packed: Bytes) -> Bytes:
        try:
            return self._inflate(packed, self._block_bytes)
        except Exception:
            # One byte more than there should be tells a stream that is too long from a damaged one, which raises here.
            return zlib.decompressobj().decompress(packed, self._block_bytes + 1)  # type: ignore[arg-type]  # a buffer


def unshuffle(planes: Bytes, values: npt.NDArray[Any]) -> None:
    """Set contiguous `values` from the first bytes of all of them, then the second ones, and so on."""
    item_bytes, library = values.dtype.itemsize, KERNELS.after(len(planes))
    source = np.frombuffer(planes, np.uint8)
    if library is None:
        values.reshape(-1).view(np.uint8).reshape(-1, item_bytes)[:] = source.reshape(item_bytes, -1).T
    else:
        library.unshuffle(source.ctypes.data, values.size, item_bytes, values.ctypes.data)


DirectReader = CompressedBlocks | ContiguousValues


def open_blocks(dataset: Any) -> DirectReader | None:
    """Return what reads an h5py dataset without the library; None where the library's own way is the one to take.

    That is, of datasets in blocks: another filter than deflate, or shuffle and deflate; other values than plain
    numbers; small or huge blocks, or very many; a file whose places are not the library's; no package `deflate`.
    """
    if not hasattr(type(dataset), "chunks"):  # a variable of netCDF4
        return None
    if dataset.chunks is None:
        return open_contiguous(dataset)
    if dataset.dtype.kind not in "iuf" or dataset.dtype.itemsize > 8:
        return None
    block_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if not SMALLEST_BLOCK_BYTES <= block_bytes <= _LARGEST_BLOCK_BYTES:
        return None
    inflate, filters, descriptor = _find_inflate(), _filters_of(dataset), descriptor_of(dataset)
    if inflate is None or filters is None or descriptor is None or not is_plain(dataset):
        return None
    num_blocks = math.prod(-(-size // length) for size, length in zip(dataset.shape, dataset.chunks, strict=True))
    if num_blocks > _MOST_BLOCKS or not hasattr(dataset.id, "chunk_iter"):  # HDF5 1.12.2 and before
        return None
    return CompressedBlocks(dataset, descriptor, inflate, len(filters) == 2)


def _largest_packed_bytes(num_bytes: int) -> int:
    """Return more than deflate makes of so many bytes at worst: five more for each 16 KB, and a few."""
    return num_bytes + num_bytes // 1024 + 1024


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


def _find_inflate() -> Inflate | None:
    """Return libdeflate's decompression, from the package `deflate`; it works without Python's lock."""
    with suppress(ImportError):
        import deflate

        inflate: Inflate = deflate.zlib_decompress
        return inflate
    return None
