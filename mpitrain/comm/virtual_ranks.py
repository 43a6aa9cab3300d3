"""Virtual ranks: the fixed number of microbatches into which a global batch is divided, and their owners.

V  virtual ranks      P  real ranks      v, r  one of each

V follows from the batch (`microbatches_of`), or is `training.virtual_ranks` of older runs. Results depend on V and
never on P, because every sum over samples is taken by microbatch, and the V partial sums are
added in one fixed pairwise tree (`mpitrain.comm.reduction`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mpitrain.comm.sum_tree import owned_subtrees

# Minimum number of rows in a microbatch of points, maximum number of microbatches in a batch; powers of two.
FEWEST_ROWS, MOST_MICROBATCHES = 8, 128
# Maximum for networks with batch norm, which takes its statistics from a microbatch, and for the user's own networks.
MOST_WITH_STATISTICS = 8
MOST_STREAMS = 8
GOOD_EFFICIENCY = 0.95


@dataclass(frozen=True)
class VirtualRanks:
    """Assignment of the V virtual ranks to real ranks, and the part of this rank.

    A place is a leaf of the summation tree: one for each virtual rank. If P > V, each rank from V on has one idle place
    after them, which has no samples and contributes nothing to the sums; only its request to stop counts.

    Attributes
    ----------
    num_virtual_ranks : int
        V, at least 1, the same on all ranks; a power of two except for batches of fields and `semantics=reference`.
    world_size : int
        P, the number of real ranks.
    rank : int
        Real rank of this process, from 0 to P - 1.
    streams : int or None
        Number of streams in which samples are read from files, a divisor of V; None: one per virtual rank.

    Notes
    -----
    Not collective: pure arithmetic. Real rank r owns the places floor(r N / P) up to floor((r + 1) N / P), excluded,
    with N = max(V, P).
    """

    num_virtual_ranks: int
    world_size: int
    rank: int
    streams: int | None = None

    @property
    def num_streams(self) -> int:
        """Number of streams in which samples are read from files; each stream serves V / num_streams microbatches."""
        return self.streams or self.num_virtual_ranks

    @property
    def num_places(self) -> int:
        """Number of places: V plus the idle places."""
        return max(self.num_virtual_ranks, self.world_size)

    @property
    def owned(self) -> range:
        """The contiguous range of places that this rank owns: those of virtual ranks, or its idle place."""
        return rank_range(self.num_places, self.world_size, self.rank)

    @property
    def is_idle(self) -> bool:
        """Whether this rank owns no virtual rank."""
        return self.owned.start >= self.num_virtual_ranks

    @property
    def counts(self) -> list[int]:
        """Number of places of each real rank, in rank order."""
        return [len(rank_range(self.num_places, self.world_size, rank)) for rank in range(self.world_size)]

    @property
    def is_even(self) -> bool:
        """Whether each rank owns one subtree of the same size, so that the ranks can sum by recursive doubling."""
        return (
            self.num_virtual_ranks.bit_count() == 1
            and self.world_size <= self.num_virtual_ranks
            and self.num_virtual_ranks % self.world_size == 0
        )

    @cached_property
    def blocks(self) -> list[list[range]]:
        """The maximal subtrees of the summation tree that each rank owns, in order."""
        owners = [rank for rank, count in enumerate(self.counts) for _ in range(count)]
        found: list[list[range]] = [[] for _ in range(self.world_size)]
        for subtree in owned_subtrees(owners):
            found[owners[subtree.start]].append(subtree)
        return found

    @property
    def efficiency(self) -> float:
        """Fraction of the ranks' time spent computing, 0 to 1: all wait for the rank with the most microbatches."""
        return self.num_virtual_ranks / (self.world_size * max(self.counts))


def rank_range(num_items: int, world_size: int, rank: int) -> range:
    """Return the items of `rank`, a contiguous part of N = `num_items`: floor(r N / P) up to floor((r + 1) N / P)."""
    return range(rank * num_items // world_size, (rank + 1) * num_items // world_size)


def owner_of(numbers: npt.NDArray[np.int64], virtual_ranks: VirtualRanks) -> npt.NDArray[np.int64]:
    """Return the real rank that owns each virtual rank in `numbers`, in the same shape."""
    starts = np.cumsum(virtual_ranks.counts)
    return np.searchsorted(starts, numbers, side="right")


def microbatches_of(batch_size: int, kind: str, most: int = MOST_MICROBATCHES, parts: int = 1) -> int:
    """Return the number of microbatches of a batch, which depends on the batch and never on the number of ranks.

    `parts` is the number of parts in which each microbatch is accumulated; `most`, a power of two, limits the result.
    For "points" the result is the largest power of two that leaves FEWEST_ROWS rows, or `parts` if that is more, in
    each microbatch; it is halved until `parts` divides the rows of a microbatch, or not reduced if no number does. For
    "fields" there is one microbatch per `parts` samples, or, to stay within `most`, per `parts` times a power of two.
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
    """Return the number of streams that read samples: the largest divisor of `num_microbatches` up to MOST_STREAMS."""
    return next(count for count in range(MOST_STREAMS, 0, -1) if num_microbatches % count == 0)


def idle_notice(layout: VirtualRanks, batch_size: int, kind: str, most: int = MOST_MICROBATCHES) -> list[str]:
    """Return a notice if some ranks have nothing to compute, with the batch size that would use them; otherwise [].

    `most` is the maximum number of microbatches in a batch.
    """
    num_idle = layout.world_size - layout.num_virtual_ranks
    if num_idle <= 0:
        return []
    used = min(layout.world_size, most)
    enough = used if kind == "fields" else FEWEST_ROWS << (used - 1).bit_length()
    number = 1 << (layout.world_size - 1).bit_length()
    at_most = (
        "this is the largest automatic number of microbatches; "
        f"training.virtual_ranks={number} gives each rank one, but changes the weights"
    )
    plural = "" if layout.num_virtual_ranks == 1 else "es"
    advice = f"a batch of {enough} would use {used} ranks" if layout.num_virtual_ranks < used else at_most
    return [
        f"a batch of {batch_size} is divided into {layout.num_virtual_ranks} microbatch{plural}: {num_idle} of "
        f"{layout.world_size} ranks are idle; {advice}"
    ]


def uneven_notice(layout: VirtualRanks) -> list[str]:
    """Return a notice if ranks wait for others with one microbatch more; otherwise []."""
    if layout.world_size > layout.num_virtual_ranks or layout.efficiency >= GOOD_EFFICIENCY:
        return []
    return [
        f"{layout.num_virtual_ranks} microbatches on {layout.world_size} ranks: the ranks compute "
        f"{layout.efficiency:.0%} of the time and wait otherwise; use {_even_counts(layout)} ranks for 100%"
    ]


def _even_counts(layout: VirtualRanks) -> str:
    """Return the next smaller and the next larger number of ranks that divide V, as text."""
    divisors = [one for one in range(1, layout.num_virtual_ranks + 1) if layout.num_virtual_ranks % one == 0]
    fewer = max(one for one in divisors if one < layout.world_size)
    return f"{fewer} or {min(one for one in divisors if one > layout.world_size)}"


def plan_virtual_ranks(requested: int, world_size: int, rank: int) -> tuple[VirtualRanks, list[str]]:
    """Return the layout for `world_size` ranks, and notices about it.

    If there are more ranks than virtual ranks, V is raised to the next power of two, so that no rank is idle.
    """
    notices = []
    num_virtual_ranks = requested
    if world_size > requested:
        num_virtual_ranks = 1 << (world_size - 1).bit_length()
        notices.append(
            f"training.virtual_ranks: raised from {requested} to {num_virtual_ranks} for {world_size} "
            f"ranks; results "
            f"differ from those with {requested}: set training.virtual_ranks={num_virtual_ranks} in all runs to compare"
        )
    plan = VirtualRanks(num_virtual_ranks, world_size, rank)
    if plan.efficiency < 1:
        notices.append(
            f"{num_virtual_ranks} virtual ranks on {world_size} ranks: the ranks compute {plan.efficiency:.0%} of the "
            f"time and wait otherwise; use {_even_counts(plan)} ranks for 100%"
        )
    return plan, notices
