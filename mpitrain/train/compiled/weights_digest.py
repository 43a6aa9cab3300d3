"""The digest of the weights that the compiled step takes itself, in every step of a call."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable

import numpy as np

_LANES_BYTES, _ALIGNMENT = 64, 64


class KernelDigest:
    """`WeightsDigest` in the memory of a `Digest` (digest.hpp): lanes of sums, then lanes of weighted sums."""

    def __init__(self) -> None:
        self._memory = np.zeros(2 * _LANES_BYTES + _ALIGNMENT, dtype=np.uint8)
        self.address = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._add: Callable[[], None] = lambda: None

    def added_by(self, add: Callable[[], None]) -> None:
        """Set what takes in the weights as they are."""
        self._add = add

    @property
    def value(self) -> int:
        """See `WeightsDigest.value`: a CRC-32 notices whatever one lane alone can differ in."""
        content = ctypes.string_at(self.address, 2 * _LANES_BYTES)
        return zlib.crc32(content[:_LANES_BYTES]) << 32 | zlib.crc32(content[_LANES_BYTES:])

    def add(self) -> None:
        """See `WeightsDigest.add`."""
        self._add()
