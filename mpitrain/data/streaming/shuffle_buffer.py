"""The order in which samples leave a bounded shuffle buffer.

n  samples of the stream      h  samples per round      2h  slots of the buffer

The buffer has h pairs of slots. A round draws one slot of each pair at random, returns these h samples in random order,
and refills the slots with the next h samples of the stream. So a sample stays for 1, 2, 3, ... rounds with probability
1/2, 1/4, 1/8, ...: 2h samples pass on average while it waits, as in a buffer of 2h slots from which samples are drawn
one by one. The samples left at the end of the stream come in random order; a stream of up to 2h samples is shuffled
perfectly.

Quality: of two samples that enter in the same round, each leaves first with probability 1/2; of two samples that are h,
2h or 3h apart in the stream the later one leaves first with probability 1/4, 1/8 or 1/16. So a batch mixes samples from
about 4h consecutive ones. At larger distances only the order of the chunks is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mpitrain.data.random_streams import keyed_words

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BufferOrder:
    """Sequence of the slots that each round draws. `keys` seed the draws; None keeps the order of the stream."""

    num_samples: int
    round_size: int
    keys: tuple[int, ...] | None

    @property
    def num_slots(self) -> int:
        """Number of slots in use."""
        return min(self.num_samples, 2 * self.round_size)

    @property
    def num_full_rounds(self) -> int:
        """Number of rounds of `round_size` samples; one last round with all remaining samples follows them."""
        return max(0, -(-(self.num_samples - 2 * self.round_size) // self.round_size))

    def refilled(self, round_number: int) -> range:
        """Return the stream positions of the samples that refill a full round's slots, in the order of `drawn`."""
        first = (2 + round_number) * self.round_size
        return range(first, min(first + self.round_size, self.num_samples))

    def drawn(self, round_number: int) -> IndexArray:
        """Return the slots that a round draws, in the order in which their samples leave the buffer."""
        if round_number >= self.num_full_rounds:
            return self._last
        h = self.round_size
        if self.keys is None:
            return np.arange(h) + round_number % 2 * h
        words = keyed_words((*self.keys, round_number), h)
        return _order_of(words) + (words & np.uint64(1)).astype(np.int64) * h

    @cached_property
    def _last(self) -> IndexArray:
        """The slots that the last round draws: all that still hold a sample."""
        rounds, h = self.num_full_rounds, self.round_size
        if self.keys is None:
            return np.roll(np.arange(self.num_slots), -(rounds % 2) * h)[: self.num_samples - rounds * h]
        slots = np.arange(self.num_slots)
        if rounds:
            empty = self.drawn(rounds - 1)[len(self.refilled(rounds - 1)) :]
            slots = np.delete(slots, empty)
        return slots[_order_of(keyed_words((*self.keys, rounds), len(slots)))]

    def content(self, round_number: int) -> IndexArray:
        """Return the position in the stream of the sample in each slot before a round; -1 for an empty slot."""
        places = np.arange(self.num_slots, dtype=np.int64)
        for earlier in range(round_number):
            slots, new = self.drawn(earlier), self.refilled(earlier)
            places[slots[: len(new)]] = np.arange(new.start, new.stop)
            places[slots[len(new) :]] = -1
        return places


def _order_of(words: npt.NDArray[np.uint64]) -> IndexArray:
    """Return the permutation that sorts random words by all but their lowest bits.

    The lowest bits are replaced by each word's index. Then no two are equal, so that an unstable sort gives the same
    permutation as a stable one, in a tenth of the time.
    """
    bits = np.uint64(max(1, (len(words) - 1).bit_length()))
    places = np.sort((words >> bits << bits) | np.arange(len(words), dtype=np.uint64))
    return (places & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
