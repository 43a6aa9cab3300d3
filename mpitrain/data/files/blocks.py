"""Blocks of an HDF5 dataset, unpacked here: the library's own filters take turns behind one lock, at half the rate.

HDF5 file format specification, "Filter pipeline message": deflate is zlib's format, shuffle puts the first bytes of
all numbers of a block first, then the second ones, fletcher32 appends a checksum. Bit i of a block's filter mask says
that filter i was left out. Blocks at the edges are stored whole.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import MOST_OF_SMALL_FILE_BYTES, Slices, ranges_of

Bytes = bytes | bytearray | npt.NDArray[np.uint8]
Lock = Callable[[], AbstractContextManager[Any]]
Array = npt.NDArray[Any]
DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3  # H5Z_FILTER_ of H5Zpublic.h
_KNOWN = {(DEFLATE,), (SHUFFLE, DEFLATE), (DEFLATE, FLETCHER32), (SHUFFLE, DEFLATE, FLETCHER32)}
_STRONGEST_DEFLATE = 1032
# Below that, a call of Python's costs more than it saves.
SMALLEST_BLOCK_BYTES = 16 * 2**10
_LARGEST_BLOCK_BYTES = 2**31
_CHECKED_WORDS = 2**20  # as many as a sum of products of 16 and 20 bits may have in 64


class DamagedBlockError(Exception):
    """A block that holds other than its shape or its checksum says."""


class Blocks:
    """One dataset of an open file, which must stay open, whose blocks went through filters that are known here."""

    def __init__(self, dataset: Any, filters: tuple[int, ...]) -> None:
        """See `open_blocks`."""
        self._dataset, self._filters = dataset, filters
        self._dtype: np.dtype[Any] = dataset.dtype
        self._shape: tuple[int, ...] = dataset.shape
        self._chunks: tuple[int, ...] = dataset.chunks
        self._block_bytes = math.prod(self._chunks) * self._dtype.itemsize

    def read(self, slices: Slices, library: Lock, stored_sum: StoredSum) -> Array | None:
        """Return a part as stored, and add its blocks' bytes to `stored_sum`; None for slices with steps.

        HDF5 is called inside `library()`; blocks are unpacked outside of it, and of Python's lock. Raises
        DamagedBlockError for a block of another size than its shape, zlib.error for one that is no stream.
        """
        ranges = ranges_of(slices, self._shape)
        if any(step != 1 for _, _, step in ranges):
            return None
        bounds = [(start, max(start, stop)) for start, stop, _ in ranges]
        found = np.empty([stop - start for start, stop in bounds], self._dtype)
        for corner in self._corners(bounds):
            self._read_block(corner, bounds, found, library, stored_sum)
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
        self, corner: tuple[int, ...], bounds: list[tuple[int, int]], found: Array, library: Lock, stored_sum: StoredSum
    ) -> None:
        inside = [
            (max(first, start), min(first + length, stop))
            for first, length, (start, stop) in zip(corner, self._chunks, bounds, strict=True)
        ]
        target = found[tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(inside, bounds, strict=True))]
        with library():
            packed, mask = self._packed(corner)
            if packed is None:  # never written: the fill value, of which HDF5 has its own rules
                target[...] = self._dataset[tuple(slice(a, b) for a, b in inside)]
                return
        stored_sum.add(packed, int(np.ravel_multi_index(corner, self._shape)))
        is_whole = all(b - a == length for (a, b), length in zip(inside, self._chunks, strict=True))
        if is_whole and target.flags.c_contiguous:
            self._unpack(packed, mask, target)
            return
        block = np.empty(self._chunks, self._dtype)
        self._unpack(packed, mask, block)
        target[...] = block[tuple(slice(a - first, b - first) for (a, b), first in zip(inside, corner, strict=True))]

    def _packed(self, corner: tuple[int, ...]) -> tuple[bytes | None, int]:
        """Return a block as it lies in the file, and its filter mask; None where it was never written."""
        try:
            mask, packed = self._dataset.id.read_direct_chunk(corner)
        except (OSError, RuntimeError, ValueError):
            return None, 0
        return packed, mask

    def _unpack(self, packed: Bytes, mask: int, values: Array) -> None:
        """Set a block's values. Raises where the block is damaged or of another size."""
        plain, is_shuffled = packed, False
        for number, code in reversed(list(enumerate(self._filters))):
            if mask >> number & 1:
                continue
            if code == FLETCHER32:
                plain = check_fletcher32(plain)
            elif code == DEFLATE:
                plain = inflated(plain, self._block_bytes)
            else:
                is_shuffled = True  # always the first of them
        if len(plain) != self._block_bytes:
            raise DamagedBlockError(f"a block of {len(plain)} bytes, of a shape of {self._block_bytes}")
        if is_shuffled:
            unshuffle(plain, values)
        else:
            values.reshape(-1).view(np.uint8)[:] = np.frombuffer(plain, np.uint8)


def inflated(packed: Bytes, num_bytes: int) -> Bytes:
    """Return a zlib stream unpacked. Raises DamagedBlockError where it is longer than `num_bytes`, and zlib.error."""
    try:
        import deflate

        return deflate.zlib_decompress(packed, num_bytes)  # libdeflate, without Python's lock
    except Exception:  # not installed, or a damaged stream: zlib says which
        stream = zlib.decompressobj()
        # One byte more than there should be tells a stream that is too long from a damaged one, which raises here.
        found = stream.decompress(packed, num_bytes + 1)  # type: ignore[arg-type]  # a buffer
        if len(found) > num_bytes:
            raise DamagedBlockError(f"a block unpacks to more than its {num_bytes} bytes") from None
        if not stream.eof:
            raise DamagedBlockError("a block ends too early") from None
        return found


def unshuffle(planes: Bytes, values: Array) -> None:
    """Set contiguous `values` from the first bytes of all of them, then the second ones, and so on."""
    item_bytes = values.dtype.itemsize
    rows = np.frombuffer(planes, np.uint8).reshape(item_bytes, -1)
    words = values.reshape(-1).view(f"<u{item_bytes}")
    words[:] = rows[-1]
    for row in rows[-2::-1]:
        words <<= 8
        words |= row


def check_fletcher32(block: Bytes) -> Bytes:
    """Return a block without the checksum at its end. Raises DamagedBlockError where it has another one."""
    plain, told = bytes(block[:-4]), int.from_bytes(bytes(block[-4:]), "little")
    words = np.frombuffer(plain + b"\0" * (len(plain) % 2), ">u2")
    first = second = 0
    for start in range(0, len(words), _CHECKED_WORDS):
        part = words[start : start + _CHECKED_WORDS].astype(np.int64)
        second += len(part) * first + int(np.arange(len(part), 0, -1) @ part)
        first += int(part.sum())
    # Sums of ones' complement: 0 and 65535 are the same.
    if (first - (told & 0xFFFF)) % 0xFFFF or (second - (told >> 16)) % 0xFFFF:
        raise DamagedBlockError("a block's Fletcher checksum is not that of its bytes")
    return plain


def open_blocks(dataset: Any) -> Blocks | None:
    """Return what unpacks an h5py dataset here; None where the library's own way is the one to take.

    That is: values that follow one another; other filters than these three in their usual order, or without deflate;
    other values than plain numbers; small or huge blocks. Raises DamagedBlockError for small blocks that take more
    room than they can need: the library would unpack whatever is in them.
    """
    if not hasattr(type(dataset), "chunks") or dataset.chunks is None:  # a variable of netCDF4 has no such attribute
        return None
    filters, block_bytes = _filters_of(dataset), math.prod(dataset.chunks) * dataset.dtype.itemsize
    is_plain = dataset.dtype.kind in "iuf" and dataset.dtype.itemsize in (1, 2, 4, 8) and _has_plain_numbers(dataset)
    if is_plain and filters and SMALLEST_BLOCK_BYTES <= block_bytes <= _LARGEST_BLOCK_BYTES:
        return Blocks(dataset, filters)
    _check_packed_sizes(dataset, block_bytes)
    return None


def _check_packed_sizes(dataset: Any, block_bytes: int) -> None:
    codes = codes_of(dataset)
    if not codes or not dataset.id.get_num_chunks():
        return
    most = 0

    def look(block: Any) -> None:
        nonlocal most
        most = max(most, block.size)

    dataset.id.chunk_iter(look)
    # More than deflate makes of so many bytes at worst: five more for each 16 KB, and a few.
    if most > block_bytes + block_bytes // 1024 + 1024:
        raise DamagedBlockError(f"a block of {block_bytes} bytes takes {most} in the file")
    if DEFLATE in codes and most * _STRONGEST_DEFLATE > MOST_OF_SMALL_FILE_BYTES:
        raise DamagedBlockError(f"blocks of {most} bytes with the filters {codes}: write it with shuffle and deflate")


def _has_plain_numbers(dataset: Any) -> bool:
    """Tell whether the file's numbers are numpy's, bit by bit: HDF5 has some of 12 bits, or with the sign elsewhere."""
    import h5py

    return bool(h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()))


def _filters_of(dataset: Any) -> tuple[int, ...]:
    """Return the dataset's filters, in the order of writing, where `Blocks` undoes them; else none."""
    filters = codes_of(dataset)
    if filters not in _KNOWN:
        return ()
    item_bytes = dataset.id.get_create_plist().get_filter(0)[2] if filters[0] == SHUFFLE else (dataset.dtype.itemsize,)
    return filters if tuple(item_bytes) == (dataset.dtype.itemsize,) else ()


def codes_of(dataset: Any) -> tuple[int, ...]:
    """Return HDF5's numbers of the filters of an h5py dataset, in the order of writing."""
    steps = dataset.id.get_create_plist()
    return tuple(int(steps.get_filter(number)[0]) for number in range(steps.get_nfilters()))
