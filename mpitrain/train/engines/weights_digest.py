"""A digest of the weights as each step of the training found them, so that a difference shows after it is gone, too.

A weight that is wrong on one rank for a few steps changes the sum over all ranks for good, even where rounding takes
the difference itself away again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from mpitrain.comm import Array, host_array

# What a step may cost: some 30 us, where a step on so many weights takes milliseconds.
_BYTES_A_STEP = 1 << 16


class WeightsDigest(Protocol):
    """A number that the ranks of a run have in common as long as their weights were the same in every step."""

    @property
    def value(self) -> int:
        """The digest so far, below 2^64."""

    def add(self) -> None:
        """Add the present weights."""


class CrcOfWeights:
    """`WeightsDigest` by CRC-32, which notices any single flipped bit; of weights on the CPU, contiguous in memory.

    Of weights on a GPU it knows nothing, and stays 0: their bytes would have to be copied in every step.
    """

    def __init__(self, parameters: Iterable[Array]) -> None:
        readable = [one.detach() for one in parameters if one.device.type == "cpu" and one.is_contiguous()]
        # In place is how optimisers and checkpoints change parameters: the views stay theirs.
        self._weights = [host_array(one).reshape(-1).view(np.uint8).data for one in readable]
        self._windows = _windows(self._weights, _BYTES_A_STEP)
        self._num_steps = 0
        self.value = 0

    def add(self) -> None:
        """See `WeightsDigest.add`."""
        self._take_in(self._weights)

    def add_in_step(self) -> None:
        """Add the weights before a step: all if there are few, else a part, another one in each step."""
        if self._windows:
            self._take_in(self._windows[self._num_steps % len(self._windows)])
            self._num_steps += 1

    def _take_in(self, pieces: Sequence[memoryview]) -> None:
        for piece in pieces:
            self.value = zlib.crc32(piece, self.value)


def _windows(pieces: Sequence[memoryview], most_bytes: int) -> list[list[memoryview]]:
    """Return all bytes of `pieces` in their order, in groups of at most `most_bytes`."""
    windows: list[list[memoryview]] = []
    room = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            if room == 0:
                windows.append([])
                room = most_bytes
            part = piece[start : start + room]
            windows[-1].append(part)
            start, room = start + len(part), room - len(part)
    return windows
