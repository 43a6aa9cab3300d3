"""How large a chunk of a Zarr store becomes, asked before a codec takes the memory for it.

Blosc, LZ4 of numcodecs and most frames of Zstandard begin with that size; a stream of zlib or gzip is counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LARGEST_BLOCK = 128 * 2**10
_PIECE_BYTES = 2**20
# What makes the bytes of a chunk no more than a few times as many.
_HARMLESS = frozenset({
    "adler32", "astype", "bitround", "bytes", "crc32", "crc32c", "delta", "endian", "fixedscaleoffset", "fletcher32",
    "packbits", "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-bytes", "vlen-utf8", "vlen-array",
})  # fmt: skip


def refused_codec(codecs: Sequence[str]) -> str | None:
    """Return the first codec that may make a chunk of any size without telling it; None where there is none."""
    packers = [codec for codec in codecs if codec not in _HARMLESS]
    unknown = [codec for codec in packers if codec not in _SIZE_OF]
    return next(iter([*unknown, *packers[1:]]), None)  # what is packed twice tells the size of the first time alone


def check_chunk_size(packed: bytes, codecs: Sequence[str], expected_bytes: int) -> None:
    """Raise ValueError where a chunk's bytes unpack to more than `expected_bytes`."""
    packers = [codec for codec in codecs if codec in _SIZE_OF]
    if not packers:
        return
    size = _SIZE_OF[packers[0]](packed, expected_bytes)
    if size > _most_bytes(expected_bytes):
        raise ValueError(f"a chunk of {expected_bytes} bytes unpacks to {size} or more: it is damaged")


def _most_bytes(expected: int) -> int:
    # Filters before the packing may add a checksum, or make items wider.
    return 8 * expected + 2**20


def _blosc_size(packed: bytes, _: int) -> int:
    return int.from_bytes(packed[4:8], "little")


def _lz4_size(packed: bytes, _: int) -> int:
    return int.from_bytes(packed[:4], "little")


def _zlib_size(packed: bytes, expected: int) -> int:
    stream, size, rest = zlib.decompressobj(wbits=47), 0, packed
    while rest and size <= _most_bytes(expected):
        size += len(stream.decompress(rest, _PIECE_BYTES))
        rest = stream.unconsumed_tail
    return size


def _zstd_size(packed: bytes, _: int) -> int:
    """Return the size that a Zstandard frame tells, or the most that its blocks can hold (RFC 8878, section 3.1.1)."""
    if packed[:4] != _ZSTD_MAGIC or len(packed) < 6:
        return 0
    descriptor = packed[4]
    is_single, field = bool(descriptor & 32), descriptor >> 6
    place = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    width = (int(is_single), 2, 4, 8)[field]
    told = int.from_bytes(packed[place : place + width], "little") + (256 if width == 2 else 0)
    return max(told, _most_in_blocks(packed, place + width)) if width == 0 else told


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


_SIZE_OF: dict[str, Callable[[bytes, int], int]] = {
    "blosc": _blosc_size,
    "lz4": _lz4_size,
    "zlib": _zlib_size,
    "gzip": _zlib_size,
    "zstd": _zstd_size,
}
