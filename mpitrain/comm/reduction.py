"""Adding what the ranks computed: in a fixed tree, the same bits on any number of ranks, or as the library likes.

P  real ranks      V  virtual ranks      k  slices on this rank      n  numbers a slice
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.virtual_ranks import VirtualRanks

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Reducer(Protocol):
    """Sums rows of partial results over slices and ranks."""

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """Return the sum (n,) over all ranks of the rows of `partials` (k, n), on every rank. Collective."""


class FixedTreeReducer:
    """Adds the V partials in the tree ((0,1),(2,3)),((4,5),(6,7)) whatever the number of ranks."""

    def __init__(self, communicator: Communicator, virtual_ranks: VirtualRanks) -> None:
        self._communicator = communicator
        self._virtual_ranks = virtual_ranks

    def reduce(self, partials: torch.Tensor, combine: Combine = torch.add) -> torch.Tensor:
        """See `Reducer.reduce`: k is the number of owned virtual ranks, rows in their order.

        `combine(lower, upper)` joins two stacks of rows (m, n); it must give the same bits on all ranks.
        """
        if self._communicator.size == 2 and self._virtual_ranks.is_even and combine is torch.add:
            # A sum of two has one order: the library's Allreduce gives its bits, and is faster than an exchange.
            row = combine_in_tree(partials)
            self._communicator.all_reduce(row)
            return row
        if self._virtual_ranks.is_even:
            return self._double_recursively(combine_in_tree(partials, combine), combine)
        return combine_in_tree(self._communicator.all_gather(partials, self._virtual_ranks.counts), combine)

    def _double_recursively(self, row: torch.Tensor, combine: Combine) -> torch.Tensor:
        # At distance d, ranks r and r XOR d hold the two halves of one subtree; both combine lower with upper.
        distance = 1
        while distance < self._communicator.size:
            partner = self._communicator.rank ^ distance
            received = self._communicator.exchange(row, partner)
            lower, upper = (row, received) if self._communicator.rank < partner else (received, row)
            row = combine(lower[None], upper[None])[0]
            distance *= 2
        return row


@dataclass(frozen=True)
class NarrowWire:
    """Send all but the last `num_exact` numbers in `dtype`, multiplied by `scale` on the way so that none overflows."""

    dtype: torch.dtype
    num_exact: int
    scale: float


class LibraryReducer:
    """Adds with the library's own Allreduce: equal to rounding for different numbers of ranks, and no more."""

    def __init__(self, communicator: Communicator, wire: NarrowWire | None = None) -> None:
        self._communicator = communicator
        self._wire = wire

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """See `Reducer.reduce`."""
        total = partials[0] if len(partials) == 1 else partials.sum(dim=0)
        if self._wire is not None:
            self._reduce_narrowly(total, self._wire)
        elif self._communicator.size > 1:
            self._communicator.all_reduce(total)
        return total

    def _reduce_narrowly(self, total: torch.Tensor, wire: NarrowWire) -> None:
        narrow, exact = total[: -wire.num_exact], total[-wire.num_exact :]
        travelling = (narrow * wire.scale).to(wire.dtype)
        if self._communicator.size > 1:
            self._communicator.all_reduce(travelling)
            self._communicator.all_reduce(exact)
        narrow.copy_(travelling).div_(wire.scale)


def combine_in_tree(rows: torch.Tensor, combine: Combine = torch.add) -> torch.Tensor:
    """Combine `rows` (2^m, n) pairwise, neighbours first, into one row (n,)."""
    while rows.shape[0] > 1:
        rows = combine(rows[0::2], rows[1::2])
    return rows[0]
