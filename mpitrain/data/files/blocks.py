"""Decompression of HDF5 chunks outside the library, which runs its filters under a global lock, at half the rate.

HDF5 file format specification, "Filter pipeline message": deflate is zlib's format; shuffle stores the first bytes of
all numbers of a chunk, then their second bytes, and so on; fletcher32 appends a checksum. Bit i of a chunk's filter
mask means that filter i was skipped. Chunks at the edges of the dataset are stored with their full shape.
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
# For smaller chunks a Python call costs more time than it saves.
SMALLEST_BLOCK_BYTES = 16 * 2**10
_LARGEST_BLOCK_BYTES = 2**31
_CHECKED_WORDS = 2**20  # 2^20 products of 20 and 16 bits fit into a 64-bit sum


class DamagedBlockError(Exception):
    """A chunk that does not match its shape or its checksum."""


class Blocks:
    """Reader of one dataset with filters that this module can undo; its file must stay open."""

    def __init__(self, dataset: Any, filters: tuple[int, ...]) -> None:
        """Use `open_blocks`, which checks the dataset."""
        self._dataset, self._filters = dataset, filters
        self._dtype: np.dtype[Any] = dataset.dtype
        self._shape: tuple[int, ...] = dataset.shape
        self._chunks: tuple[int, ...] = dataset.chunks
        self._block_bytes = math.prod(self._chunks) * self._dtype.itemsize

    def read(self, slices: Slices, library: Lock, stored_sum: StoredSum) -> Array | None:
        """Return a part as stored, and add the bytes of its chunks to `stored_sum`; None for slices with steps.

        HDF5 is called inside `library()`; chunks are decompressed outside of it, without Python's global lock. Raises
        DamagedBlockError for a chunk of the wrong size or checksum, and zlib.error for an invalid zlib stream.
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
        """Yield the first position of each chunk that overlaps the part."""
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
            if packed is None:  # never written: HDF5 returns the fill value
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
        """Return a chunk as stored in the file, and its filter mask; (None, 0) if it was never written."""
        try:
            mask, packed = self._dataset.id.read_direct_chunk(corner)
        except (OSError, RuntimeError, ValueError):
            return None, 0
        return packed, mask

    def _unpack(self, packed: Bytes, mask: int, values: Array) -> None:
        """Set the values of a chunk. Raises as `read`."""
        plain, is_shuffled = packed, False
        for number, code in reversed(list(enumerate(self._filters))):
            if mask >> number & 1:
                continue
            if code == FLETCHER32:
                plain = check_fletcher32(plain)
            elif code == DEFLATE:
                plain = inflated(plain, self._block_bytes)
            else:
                is_shuffled = True  # always the first filter, undone last
        if len(plain) != self._block_bytes:
            raise DamagedBlockError(f"a chunk has {len(plain)} bytes, its shape {self._block_bytes}")
        if is_shuffled:
            unshuffle(plain, values)
        else:
            values.reshape(-1).view(np.uint8)[:] = np.frombuffer(plain, np.uint8)


def inflated(packed: Bytes, num_bytes: int) -> Bytes:
    """Return a decompressed zlib stream.

    Raises DamagedBlockError if it exceeds `num_bytes` or ends early, and zlib.error if it is damaged.
    """
    try:
        import deflate

        return deflate.zlib_decompress(packed, num_bytes)  # libdeflate, releases Python's global lock
    except Exception:  # not installed, or a damaged stream: zlib raises for the latter
        stream = zlib.decompressobj()
        # One byte more than expected: tells a stream that is too long from a damaged one, which raises here.
        found = stream.decompress(packed, num_bytes + 1)  # type: ignore[arg-type]  # a buffer
        if len(found) > num_bytes:
            raise DamagedBlockError(f"a chunk unpacks to more than its {num_bytes} bytes") from None
        if not stream.eof:
            raise DamagedBlockError("a compressed chunk ends too early") from None
        return found


def unshuffle(planes: Bytes, values: Array) -> None:
    """Undo the shuffle filter: set contiguous `values` from their first bytes, then their second bytes, and so on."""
    item_bytes = values.dtype.itemsize
    rows = np.frombuffer(planes, np.uint8).reshape(item_bytes, -1)
    words = values.reshape(-1).view(f"<u{item_bytes}")
    words[:] = rows[-1]
    for row in rows[-2::-1]:
        words <<= 8
        words |= row


def check_fletcher32(block: Bytes) -> Bytes:
    """Return a chunk without the checksum at its end. Raises DamagedBlockError if the checksum does not match."""
    plain, stored = bytes(block[:-4]), int.from_bytes(bytes(block[-4:]), "little")
    words = np.frombuffer(plain + b"\0" * (len(plain) % 2), ">u2")
    first = second = 0
    for start in range(0, len(words), _CHECKED_WORDS):
        part = words[start : start + _CHECKED_WORDS].astype(np.int64)
        second += len(part) * first + int(np.arange(len(part), 0, -1) @ part)
        first += int(part.sum())
    # Ones' complement sums: 0 and 65535 are equal.
    if (first - (stored & 0xFFFF)) % 0xFFFF or (second - (stored >> 16)) % 0xFFFF:
        raise DamagedBlockError("the Fletcher checksum of a chunk does not match its bytes")
    return plain


def open_blocks(dataset: Any) -> Blocks | None:
    """Return the reader of an h5py dataset; None if it must be read through the library.

    That is the case for contiguous datasets, for filters other than these three in their usual order or without
    deflate, for values other than plain numbers, and for small or huge chunks. Raises DamagedBlockError if the
    stored chunks of such a dataset are larger than they can be: the library would decompress them to any size.
    """
    if not hasattr(type(dataset), "chunks") or dataset.chunks is None:  # netCDF4 variables have no such attribute
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
    # Above the worst case of deflate, which adds 5 bytes for each 16 KB and a few more.
    if most > block_bytes + block_bytes // 1024 + 1024:
        raise DamagedBlockError(f"a chunk of {block_bytes} bytes takes {most} bytes in the file")
    if DEFLATE in codes and most * _STRONGEST_DEFLATE > MOST_OF_SMALL_FILE_BYTES:
        raise DamagedBlockError(
            f"compressed chunks of {most} bytes with the filters {codes}: write the variable with shuffle and deflate"
        )


def _has_plain_numbers(dataset: Any) -> bool:
    """Tell whether the stored type is exactly numpy's: HDF5 also has 12-bit numbers, or the sign in another bit."""
    import h5py

    return bool(h5py.h5t.py_create(dataset.dtype).equal(dataset.id.get_type()))


def _filters_of(dataset: Any) -> tuple[int, ...]:
    """Return the dataset's filters, in the order of writing, if `Blocks` can undo them; () otherwise."""
    filters = codes_of(dataset)
    if filters not in _KNOWN:
        return ()
    item_bytes = dataset.id.get_create_plist().get_filter(0)[2] if filters[0] == SHUFFLE else (dataset.dtype.itemsize,)
    return filters if tuple(item_bytes) == (dataset.dtype.itemsize,) else ()


def codes_of(dataset: Any) -> tuple[int, ...]:
    """Return the HDF5 identifiers of the filters of an h5py dataset, in the order of writing."""
    steps = dataset.id.get_create_plist()
    return tuple(int(steps.get_filter(number)[0]) for number in range(steps.get_nfilters()))
