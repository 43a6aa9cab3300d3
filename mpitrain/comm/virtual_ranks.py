"""Virtual ranks: the fixed number of slices in which a global batch is computed, and who owns them.

V  virtual ranks (a power of two)      P  real ranks      v, r  one of each

Results depend on V and never on P, because every sum over samples is taken slice by slice and the V partial sums are
added in one fixed pairwise tree (`mpitrain.comm.reduction`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class VirtualRanks:
    """Which of the V virtual ranks this real rank owns."""

    num_virtual_ranks: int
    world_size: int
    rank: int

    @property
    def owned(self) -> range:
        """The contiguous run of virtual ranks that this rank owns."""
        return rank_range(self.num_virtual_ranks, self.world_size, self.rank)

    @property
    def counts(self) -> list[int]:
        """How many virtual ranks each real rank owns, in rank order."""
        return [len(rank_range(self.num_virtual_ranks, self.world_size, rank)) for rank in range(self.world_size)]

    @property
    def is_even(self) -> bool:
        """True if each rank's run is one aligned subtree, so that ranks can combine by recursive doubling."""
        return self.num_virtual_ranks % self.world_size == 0

    @property
    def efficiency(self) -> float:
        """The share of the ranks' time that is work when the fullest rank sets the pace, 0 to 1."""
        return self.num_virtual_ranks / (self.world_size * max(self.counts))


def rank_range(num_items: int, world_size: int, rank: int) -> range:
    """Return the contiguous run of `num_items` items that `rank` owns: floor(r N / P) up to floor((r + 1) N / P)."""
    return range(rank * num_items // world_size, (rank + 1) * num_items // world_size)


def owner_of(which: npt.NDArray[np.int64], virtual_ranks: VirtualRanks) -> npt.NDArray[np.int64]:
    """Return the real rank that owns each virtual rank of `which`, of the same shape."""
    starts = np.cumsum(virtual_ranks.counts)
    return np.searchsorted(starts, which, side="right")


def plan_virtual_ranks(requested: int, world_size: int, rank: int) -> tuple[VirtualRanks, list[str]]:
    """Return the layout for `world_size` ranks, and the lines that a user should read about it.

    With more ranks than virtual ranks, V is raised to the next power of two: no rank may be without a slice.
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
        good = max(
            count for count in range(1, num_virtual_ranks + 1) if num_virtual_ranks % count == 0 and count < world_size
        )
        notices.append(
            f"{num_virtual_ranks} virtual ranks on {world_size} ranks: {plan.efficiency:.0%} of the time is work; "
            f"{good} or {_next_divisor(num_virtual_ranks, world_size)} ranks would use all of it"
        )
    return plan, notices


def _next_divisor(number: int, above: int) -> int:
    return next(count for count in range(above + 1, number + 1) if number % count == 0)
