"""Checksum of the parts of a file that were read, to detect a change when the same parts are read again."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

_PAGE_BYTES = 4 * 2**10
_SUMMED_WHOLE_BYTES = 4 * _PAGE_BYTES
_MOST = 2**64


class StoredSum:
    """Sum of the CRC-32s of the parts that were read, in any order.

    Each CRC-32 uses the position of its part as initial value.

    Compressed chunks count completely. Of uncompressed values, and of chunks whose compressed bytes the library does
    not return, one value in every 4 KiB (a page of the file) counts, and all values of parts of at most 16 KiB: these
    reads are so fast that a sum over all values would add 5 to 8 % to their time, and this one adds at most 2 %. An
    array that can only be read whole counts completely when it is read.
    """

    def __init__(self) -> None:
        """Start with a sum of 0."""
        self.value = 0
        self._crc32 = _find_crc32()

    def add(self, packed: Any, place: int) -> None:
        """Add the bytes of a compressed chunk at the position `place`."""
        self.value = (self.value + self._crc32(packed, place & 0xFFFFFFFF)) % _MOST

    def add_values(self, values: npt.NDArray[Any], place: int = 0) -> None:
        """Add a part of a variable's values, sampled as the class describes."""
        step = _PAGE_BYTES // values.itemsize if values.nbytes > _SUMMED_WHOLE_BYTES else 1
        self.add(values.reshape(-1)[::step].tobytes(), place)

    def add_whole(self, values: npt.NDArray[Any]) -> int:
        """Add all values of an array, and return the summand, which `add_again` accepts if the array is used again.

        Text in Python objects adds nothing, because samples are never made from it.
        """
        if values.dtype.hasobject:
            return 0
        value = self._crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8), 0)
        self.add_again(value)
        return value

    def add_again(self, value: int) -> None:
        """Add a summand that `add_whole` returned."""
        self.value = (self.value + value) % _MOST

    def take(self) -> int:
        """Return the sum and reset it to 0."""
        value, self.value = self.value, 0
        return value


def _find_crc32() -> Callable[[Any, int], int]:
    """Return the CRC-32 of libdeflate, from the package `deflate`, ten times as fast as zlib's; zlib's otherwise."""
    with suppress(ImportError):
        import deflate

        return deflate.crc32
    return zlib.crc32
