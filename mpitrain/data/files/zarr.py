"""Reader of Zarr stores in folders, versions 2 and 3, based on zarr-python."""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import markers_of
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import Slices, VariableInfo, Variables, bytes_of, plain_attributes, reason_too_large
from mpitrain.errors import DataError, MissingDependencyError, one_line, reason_of

# Attribute in which xarray stores the dimension names in version 2, which has no field for them.
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LARGEST_BLOCK = 128 * 2**10
_PIECE_BYTES = 2**20
# Codecs that enlarge a chunk at most by a small factor when it is decoded.
_HARMLESS = frozenset({
    "adler32", "astype", "bitround", "bytes", "crc32", "crc32c", "delta", "endian", "fixedscaleoffset", "fletcher32",
    "packbits", "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-bytes", "vlen-utf8", "vlen-array",
})  # fmt: skip


class ZarrStore:
    """One open store."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises DataError if it is not a Zarr group, and MissingDependencyError without zarr-python."""
        try:
            import zarr
        except ImportError as error:
            raise MissingDependencyError(f"{path}: Zarr needs zarr-python: python -m pip install 'zarr>=3'") from error
        self.path, self.stored_sum = path, StoredSum()
        self.refused: dict[str, str] = {}
        self._arrays: dict[str, Any] = {}
        self._guard = _Guard(path, lambda: self.stored_sum)
        try:
            group = zarr.open_group(_guarded_store(path, self._guard), mode="r", use_consolidated=False)
            found = {one_line(name): one for name, one in group.members(max_depth=None) if hasattr(one, "shape")}
            self.variables = Variables(self._describe(found))
        # zarr raises exceptions of many types for damaged metadata, RecursionError for deeply nested JSON too.
        except Exception as error:
            raise DataError(
                f"{path}: cannot be read as Zarr ({reason_of(error)}); is it the complete store of a Zarr group?"
            ) from error

    def _describe(self, found: dict[str, Any]) -> Iterable[tuple[str, VariableInfo]]:
        for name, array in found.items():
            reason = _why_refused(array, self.path)
            if reason is None:
                self._arrays[name] = array
                self._guard.chunks[array.path] = (_codecs(array), _chunk_bytes(array))
                yield name, _describe(name, array)
            else:
                self.refused[name] = reason

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored, the fill value for missing chunks. Raises DataError if damaged."""
        try:
            return np.asarray(self._arrays[name][slices])
        except DataError:
            raise
        except Exception as error:  # codecs raise exceptions of many types for a damaged chunk
            raise DataError(
                f"{self.path}: variable '{name}' cannot be read ({reason_of(error)}); is the store complete?"
            ) from error

    def close(self) -> None:
        """Release the arrays."""
        self._arrays = {}

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`: the number of chunks that are not stored.

        They are read as the array's default value, which is not marked as missing.
        """
        array, own = self._arrays.get(name), self.variables.get(name)
        if array is None or own is None or (array.fill_value is not None and array.fill_value in markers_of(own)):
            return None
        is_marked = array.dtype.kind == "f" and np.isnan(array.fill_value or 0.0)
        missing = 0 if is_marked else _num_missing(array, self.path)
        if not missing:
            return None
        num_chunks = math.prod(_grid_of_chunks(array))
        return f"{missing} of its {num_chunks} chunks are not stored, and are read as {array.fill_value or 0}"


class _Guard:
    """Checks of each file of a store before its content is used."""

    def __init__(self, root: Path, stored_sum: Callable[[], StoredSum]) -> None:
        self._stored_sum = stored_sum
        # By path of an array: its codecs, and the bytes of a chunk.
        self.chunks: dict[str, tuple[tuple[str, ...], int]] = {}
        self._root = os.path.realpath(root)

    def refuse_outside(self, key: str) -> None:
        """Raise OSError for a file outside the store: a link could otherwise read any file of the user."""
        real = os.path.realpath(os.path.join(self._root, key))
        if os.path.commonpath([real, self._root]) != self._root:
            raise OSError(f"'{key}' is a link to '{real}', which is not inside the store; copy it into the store")

    def check(self, key: str, found: Any, byte_range: object) -> Any:
        """Return `found`, the content of a file. Raises ValueError for a chunk that unpacks to more than its shape."""
        if found is None or key.endswith(_METADATA):
            return found
        packed, array = found.to_bytes(), key
        while array and array not in self.chunks:
            array = array.rpartition("/")[0]
        codecs, chunk_bytes = self.chunks.get(array, ((), sys.maxsize))
        place = zlib.crc32(key.encode())
        if len(packed) < chunk_bytes:
            self._stored_sum().add(packed, place)
        else:
            self._stored_sum().add_values(np.frombuffer(packed, np.uint8), place)
        if array in self.chunks and byte_range is None:
            check_chunk_size(packed, codecs, chunk_bytes)
        return found


def _guarded_store(path: Path, guard: _Guard) -> Any:
    """Return a read-only store of a folder in which `guard` checks every file."""
    from zarr.storage import LocalStore

    class GuardedStore(LocalStore):
        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            guard.refuse_outside(key)
            return guard.check(key, await super().get(key, prototype, byte_range), byte_range)

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> list[Any]:
            ranges = list(key_ranges)
            for key, _ in ranges:
                guard.refuse_outside(key)
            return list(await super().get_partial_values(prototype, ranges))

        def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
            guard.refuse_outside(key)
            found = super().get_sync(key, prototype=prototype, byte_range=byte_range)
            return guard.check(key, found, byte_range)

    return GuardedStore(path, read_only=True)


_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def _why_refused(array: Any, path: Path) -> str | None:
    """Return the reason if an array is refused (chunks of length 0, unsafe codec, far too large); None otherwise."""
    dtype = np.dtype(array.dtype)
    if dtype.hasobject or dtype.kind == "T":
        return None  # text, which is listed but never read
    if any(length < 1 for length in (*array.chunks, *(array.shards or ()))):
        return "its chunks have a length of 0; write the array again"
    if codec := refused_codec(_codecs(array)):
        return f"its codec '{one_line(codec)}' does not store the size of a chunk; write it with zstd, blosc or gzip"
    claimed = max(math.prod(array.shape) * dtype.itemsize, _chunk_bytes(array))
    return reason_too_large(claimed, lambda: bytes_of(path / array.path))


def _codecs(array: Any) -> tuple[str, ...]:
    """Return the names of the codecs and filters of the chunks, in the order of writing."""
    metadata = array.metadata
    if getattr(metadata, "zarr_format", 3) == 2:
        steps = [*(metadata.filters or ()), *([metadata.compressor] if metadata.compressor is not None else [])]
        return tuple(str(step.codec_id) for step in steps)
    return tuple(str(step.to_dict()["name"]).removeprefix("numcodecs.") for step in metadata.codecs)


def _chunk_bytes(array: Any) -> int:
    lengths: tuple[int, ...] = array.shards or array.chunks
    return int(math.prod(lengths) * np.dtype(array.dtype).itemsize)


def _grid_of_chunks(array: Any) -> list[int]:
    """Return the number of chunks, or shards, along each axis."""
    lengths = array.shards or array.chunks
    return [-(-size // length) for size, length in zip(array.shape, lengths, strict=True)]


def _num_missing(array: Any, path: Path) -> int:
    """Return the number of chunks, or shards, without a file."""
    folder, prefix = path / array.path, f"{array.path}/" if array.path else ""
    found = {
        os.path.relpath(os.path.join(above, name), folder) for above, _, names in os.walk(folder) for name in names
    }
    grid = _grid_of_chunks(array)
    wanted = math.prod(grid)
    if len(found) < wanted:  # fewer files than chunks: do not iterate over the keys of a huge grid
        return wanted - len(found.difference(_METADATA))
    keys = (array.metadata.encode_chunk_key(place).removeprefix(prefix) for place in np.ndindex(*grid))
    return sum(key not in found for key in keys)


def _describe(name: str, array: Any) -> VariableInfo:
    metadata, attributes = array.metadata, dict(array.attrs)
    num_axes = len(array.shape)
    named = attributes.pop(_DIMENSIONS, None) or getattr(metadata, "dimension_names", None)
    plain = plain_attributes(attributes.items())
    # In version 2 the fill value means missing, in version 3 it is a valid value (rule of xarray).
    if getattr(metadata, "zarr_format", 3) == 2 and array.fill_value is not None and array.dtype.kind in "iuf":
        plain.setdefault("_FillValue", array.fill_value.item())
    return VariableInfo(
        name=name,
        dimensions=_dimension_names(named, num_axes),
        shape=tuple(int(size) for size in array.shape),
        dtype=np.dtype(array.dtype).str,
        attributes=plain,
        chunk_shape=tuple(array.chunks) if array.shape else None,
    )


def _dimension_names(named: object, num_axes: int) -> tuple[str, ...]:
    """Return the name of each dimension, "" if it has none. Raises ValueError if their number is not `num_axes`."""
    if named is None:
        return ("",) * num_axes
    if (
        not isinstance(named, list | tuple)
        or len(named) != num_axes
        or not all(isinstance(one, str | None) for one in named)
    ):
        raise ValueError(f"{_DIMENSIONS} is {one_line(str(named)[:80])}, expected {num_axes} names")
    return tuple(one_line(one or "") for one in named)


def refused_codec(codecs: Sequence[str]) -> str | None:
    """Return the first codec that may unpack to any size without storing that size; None if there is none."""
    packers = [codec for codec in codecs if codec not in _HARMLESS]
    unknown = [codec for codec in packers if codec not in _SIZE_OF]
    return next(iter([*unknown, *packers[1:]]), None)  # of two compressions only the size of the outer one is known


def check_chunk_size(packed: bytes, codecs: Sequence[str], expected_bytes: int) -> None:
    """Raise ValueError if a chunk unpacks to clearly more than `expected_bytes`."""
    packers = [codec for codec in codecs if codec in _SIZE_OF]
    if not packers:
        return
    size = _SIZE_OF[packers[0]](packed, expected_bytes)
    if size > _most_bytes(expected_bytes):
        raise ValueError(f"a chunk of {expected_bytes} bytes unpacks to {size} or more: it is damaged")


def _most_bytes(expected: int) -> int:
    # Filters before the compression may add a checksum, or widen the items.
    return 8 * expected + 2**20


def _zlib_size(packed: bytes, expected: int) -> int:
    stream, size, rest = zlib.decompressobj(wbits=47), 0, packed
    while rest and size <= _most_bytes(expected):
        size += len(stream.decompress(rest, _PIECE_BYTES))
        rest = stream.unconsumed_tail
    return size


def _zstd_size(packed: bytes, _: int) -> int:
    """Return the content size of a Zstandard frame, or an upper bound from its blocks (RFC 8878, section 3.1.1)."""
    if packed[:4] != _ZSTD_MAGIC or len(packed) < 6:
        return 0
    descriptor = packed[4]
    is_single, field = bool(descriptor & 32), descriptor >> 6
    place = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    width = (int(is_single), 2, 4, 8)[field]
    size = int.from_bytes(packed[place : place + width], "little") + (256 if width == 2 else 0)
    return max(size, _most_in_blocks(packed, place + width)) if width == 0 else size


def _most_in_blocks(packed: bytes, place: int) -> int:
    most = 0
    while place + 3 <= len(packed):
        header = int.from_bytes(packed[place : place + 3], "little")
        size, kind = header >> 3, header >> 1 & 3
        most += size if kind < 2 else _ZSTD_LARGEST_BLOCK
        place += 3 + (1 if kind == 1 else size)
        if header & 1:
            break
    return most


# Size of an unpacked chunk: Blosc, LZ4 of numcodecs and most Zstandard frames store it; zlib and gzip are decompressed
# to count it.
_SIZE_OF: dict[str, Callable[[bytes, int], int]] = {
    "blosc": lambda packed, _: int.from_bytes(packed[4:8], "little"),
    "lz4": lambda packed, _: int.from_bytes(packed[:4], "little"),
    "zlib": _zlib_size,
    "gzip": _zlib_size,
    "zstd": _zstd_size,
}
