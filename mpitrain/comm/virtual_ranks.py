"""Virtual ranks: the fixed number of microbatches in which a global batch is computed, and who owns them.

V  virtual ranks (a power of two)      P  real ranks      v, r  one of each

V follows from the batch (`microbatches_of`), or is `training.virtual_ranks` of runs of before. Results depend on V and
never on P, because every sum over samples is taken by microbatch, and the V partial sums are
added in one fixed pairwise tree (`mpitrain.comm.reduction`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mpitrain.comm.sum_tree import owned_subtrees

# Of points a microbatch has so many rows, and a batch so many microbatches at most, each a power of two.
FEWEST_ROWS, MOST_MICROBATCHES = 8, 128
# Batch norm takes its statistics from a microbatch: then, and for networks of the user's own, there are fewer.
MOST_WITH_STATISTICS = 8
MOST_STREAMS = 8
GOOD_EFFICIENCY = 0.95


@dataclass(frozen=True)
class VirtualRanks:
    """Which of the V virtual ranks this real rank owns.

    With more ranks than V, each rank beyond them has an idle place of its own after those of the virtual ranks, which
    holds no sample: its part of each sum is nothing, and only its wish to stop counts.
    """

    num_virtual_ranks: int
    world_size: int
    rank: int
    streams: int | None = None
    """Streams in which samples are read from files, a divisor of V; None: one for each virtual rank."""

    @property
    def num_streams(self) -> int:
        """In how many streams samples are read from files; those of a stream lie in V / streams microbatches."""
        return self.streams or self.num_virtual_ranks

    @property
    def num_places(self) -> int:
        """V, and the idle places after them."""
        return max(self.num_virtual_ranks, self.world_size)

    @property
    def owned(self) -> range:
        """The contiguous run of places that this rank owns: of virtual ranks, or its idle one."""
        return rank_range(self.num_places, self.world_size, self.rank)

    @property
    def is_idle(self) -> bool:
        """Whether this rank is beyond the virtual ranks."""
        return self.owned.start >= self.num_virtual_ranks

    @property
    def counts(self) -> list[int]:
        """How many places each real rank owns, in rank order."""
        return [len(rank_range(self.num_places, self.world_size, rank)) for rank in range(self.world_size)]

    @property
    def is_even(self) -> bool:
        """True if each rank's run is one subtree of one size, so that ranks can combine by recursive doubling."""
        return (
            self.num_virtual_ranks.bit_count() == 1
            and self.world_size <= self.num_virtual_ranks
            and self.num_virtual_ranks % self.world_size == 0
        )

    @cached_property
    def blocks(self) -> list[list[range]]:
        """For each rank the largest subtrees whose leaves are its places, in order; places are leaves of one tree."""
        owners = [rank for rank, count in enumerate(self.counts) for _ in range(count)]
        found: list[list[range]] = [[] for _ in range(self.world_size)]
        for subtree in owned_subtrees(owners):
            found[owners[subtree.start]].append(subtree)
        return found

    @property
    def efficiency(self) -> float:
        """Share of the ranks' time spent computing, 0 to 1: the others wait for the rank with the most microbatches."""
        return self.num_virtual_ranks / (self.world_size * max(self.counts))


def rank_range(num_items: int, world_size: int, rank: int) -> range:
    """Return the contiguous run of `num_items` items that `rank` owns: floor(r N / P) up to floor((r + 1) N / P)."""
    return range(rank * num_items // world_size, (rank + 1) * num_items // world_size)


def owner_of(which: npt.NDArray[np.int64], virtual_ranks: VirtualRanks) -> npt.NDArray[np.int64]:
    """Return the real rank that owns each virtual rank of `which`, of the same shape."""
    starts = np.cumsum(virtual_ranks.counts)
    return np.searchsorted(starts, which, side="right")


def microbatches_of(batch_size: int, kind: str, most: int = MOST_MICROBATCHES, parts: int = 1) -> int:
    """Return in how many microbatches a batch is computed: the batch alone decides, never the number of ranks.

    Of "points", the largest power of two that leaves each FEWEST_ROWS rows; of "fields", one for each sample. At most
    `most`, a power of two. Of a microbatch that is accumulated in `parts`, each part has a row at least; there are
    fewer microbatches where only then they can all be parted alike.
    """
    if kind == "fields":
        rows = parts
        while -(-batch_size // rows) > most:
            rows *= 2
        return -(-batch_size // rows)
    largest = min(most, 1 << max(0, (batch_size // max(FEWEST_ROWS, parts)).bit_length() - 1))
    counts = (largest >> halvings for halvings in range(largest.bit_length()))
    return next((count for count in counts if -(-batch_size // count) % parts == 0), largest)


def streams_of(num_microbatches: int) -> int:
    """Return in how many streams the samples of a run are read from files: a divisor, at most MOST_STREAMS."""
    return next(count for count in range(MOST_STREAMS, 0, -1) if num_microbatches % count == 0)


def idle_notice(layout: VirtualRanks, batch_size: int, kind: str, most: int = MOST_MICROBATCHES) -> list[str]:
    """Return the line about ranks that have nothing to compute, and how large a batch would use them.

    `most`: how many microbatches a batch has at most.
    """
    num_idle = layout.world_size - layout.num_virtual_ranks
    if num_idle <= 0:
        return []
    used = min(layout.world_size, most)
    enough = used if kind == "fields" else FEWEST_ROWS << (used - 1).bit_length()
    number = 1 << (layout.world_size - 1).bit_length()
    named = f"it has no more of them; training.virtual_ranks={number} gives each rank one, and other weights"
    plural = "" if layout.num_virtual_ranks == 1 else "es"
    larger = f"a batch of {enough} would use {used}" if layout.num_virtual_ranks < used else named
    return [
        f"a batch of {batch_size} is computed in {layout.num_virtual_ranks} microbatch{plural}: {num_idle} of "
        f"{layout.world_size} ranks compute nothing in a step; {larger}"
    ]


def uneven_notice(layout: VirtualRanks) -> list[str]:
    """Return the line about ranks that wait for others with one microbatch more."""
    if layout.world_size > layout.num_virtual_ranks or layout.efficiency >= GOOD_EFFICIENCY:
        return []
    return [
        f"{layout.num_virtual_ranks} microbatches on {layout.world_size} ranks: {layout.efficiency:.0%} of the time is "
        f"work; {_even_counts(layout)} ranks would use all of it"
    ]


def _even_counts(layout: VirtualRanks) -> str:
    """Return the next smaller and larger number of ranks that would own as many virtual ranks each."""
    divisors = [one for one in range(1, layout.num_virtual_ranks + 1) if layout.num_virtual_ranks % one == 0]
    fewer = max(one for one in divisors if one < layout.world_size)
    return f"{fewer} or {min(one for one in divisors if one > layout.world_size)}"


def plan_virtual_ranks(requested: int, world_size: int, rank: int) -> tuple[VirtualRanks, list[str]]:
    """Return the layout for `world_size` ranks, and notices about it.

    With more ranks than virtual ranks, V is raised to the next power of two: no rank may be without a microbatch.
    """
    notices = []
    num_virtual_ranks = requested
    if world_size > requested:
        num_virtual_ranks = 1 << (world_size - 1).bit_length()
        notices.append(
            f"training.virtual_ranks: raised from {requested} to {num_virtual_ranks} for {world_size} "
            f"ranks, so results "
            f"differ from those of runs with {requested}; set training.virtual_ranks={num_virtual_ranks} there too"
        )
    plan = VirtualRanks(num_virtual_ranks, world_size, rank)
    if plan.efficiency < 1:
        notices.append(
            f"{num_virtual_ranks} virtual ranks on {world_size} ranks: {plan.efficiency:.0%} of the time is work; "
            f"{_even_counts(plan)} ranks would use all of it"
        )
    return plan, notices
