"""Digest of the weights at the start of each training step; it shows differences between ranks that were temporary.

A weight that is wrong on one rank for a few steps changes the gradients' sum over all ranks, and so the result, even if
rounding removes the difference itself later.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from mpitrain.comm import Array, host_array

# Bytes to digest in a step: about 30 us, while a step with this many weights or more takes milliseconds.
_BYTES_A_STEP = 1 << 16


class WeightsDigest(Protocol):
    """A number that is the same on all ranks of a run if their weights were the same in every step."""

    @property
    def value(self) -> int:
        """The digest so far, below 2^64."""

    def add(self) -> None:
        """Add the present weights."""


class CrcOfWeights:
    """`WeightsDigest` by CRC-32, which detects any single flipped bit, of weights on the CPU and contiguous in memory.

    Weights on a GPU are left out, since they would have to be copied in every step: their digest stays 0.
    """

    def __init__(self, parameters: Iterable[Array]) -> None:
        readable = [one.detach() for one in parameters if one.device.type == "cpu" and one.is_contiguous()]
        # Views: optimisers and checkpoints change parameters in place.
        self._weights = [host_array(one).reshape(-1).view(np.uint8).data for one in readable]
        self._windows = _windows(self._weights, _BYTES_A_STEP)
        self._num_steps = 0
        self.value = 0

    def add(self) -> None:
        """See `WeightsDigest.add`."""
        self._include(self._weights)

    def add_in_step(self) -> None:
        """Add the weights before a step: all if they are few, otherwise a part that differs from step to step."""
        if self._windows:
            self._include(self._windows[self._num_steps % len(self._windows)])
            self._num_steps += 1

    def _include(self, views: Sequence[memoryview]) -> None:
        for view in views:
            self.value = zlib.crc32(view, self.value)


def _windows(views: Sequence[memoryview], most_bytes: int) -> list[list[memoryview]]:
    """Return all bytes of `views` in order, in groups of at most `most_bytes`."""
    windows: list[list[memoryview]] = []
    room = 0
    for view in views:
        start = 0
        while start < len(view):
            if room == 0:
                windows.append([])
                room = most_bytes
            part = view[start : start + room]
            windows[-1].append(part)
            start, room = start + len(part), room - len(part)
    return windows
