"""Sums over the ranks: in a fixed tree, with the same bits on any number of ranks, or in the library's order.

P  real ranks      V  virtual ranks      k  places of this rank      n  numbers a microbatch
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mpitrain.comm.arrays import Array, concatenate, stack
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.sum_tree import additions_between
from mpitrain.comm.virtual_ranks import VirtualRanks

Combine = Callable[[Array, Array], Array]


class Reducer(Protocol):
    """Sums rows of partial results over microbatches and ranks."""

    def reduce(self, partials: Array) -> Array:
        """Return the sum (n,) over all ranks of the rows of `partials` (k, n), on every rank. Collective."""


class FixedTreeReducer:
    """Adds the V partials in the tree ((0,1),(2,3)),((4,5),(6,7)) whatever the number of ranks."""

    def __init__(self, communicator: Communicator, virtual_ranks: VirtualRanks) -> None:
        self._communicator = communicator
        self._virtual_ranks = virtual_ranks
        blocks = virtual_ranks.blocks
        self._own_blocks, first = blocks[virtual_ranks.rank], virtual_ranks.owned.start
        self._own_rows = [slice(block.start - first, block.stop - first) for block in self._own_blocks]
        self._block_counts = [len(own) for own in blocks]
        self._additions = additions_between([block for own in blocks for block in own])

    def reduce(self, partials: Array, combine: Combine = operator.add) -> Array:
        """See `Reducer.reduce`: k is the number of owned places, rows in their order.

        `combine(lower, upper)` joins two stacks of rows (m, n); it must give the same bits on all ranks, and leave a
        row as it is that it joins with that of an idle place.
        """
        if self._virtual_ranks.is_idle:
            partials = _neutral(partials)
        if self._communicator.size == 2 and self._virtual_ranks.is_even and combine is operator.add:
            # A sum of two has one order: the library's Allreduce gives its bits, and is faster than an exchange.
            row = combine_in_tree(partials)
            self._communicator.all_reduce(row)
            return row
        if self._virtual_ranks.is_even:
            return self._double_recursively(combine_in_tree(partials, combine), combine)
        return self._gather_blocks(partials, combine)

    def _gather_blocks(self, partials: Array, combine: Combine) -> Array:
        """Return the sum from each rank's subtrees, the same on all ranks: they travel as one row each."""
        own = stack([combine_in_tree(partials[rows], combine) for rows in self._own_rows])
        rows = list(self._communicator.all_gather(own, self._block_counts))
        for to, which in self._additions:
            rows[to] = combine(rows[to][None], rows[which][None])[0]
        return rows[0]

    def _double_recursively(self, row: Array, combine: Combine) -> Array:
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
    """Send all but the last `num_exact` numbers in torch's `dtype`, times `scale` on the way so that none overflows."""

    dtype: Any
    num_exact: int
    scale: float


class LibraryReducer:
    """Adds with the library's own Allreduce: equal to rounding for different numbers of ranks, and no more."""

    def __init__(self, communicator: Communicator, wire: NarrowWire | None = None) -> None:
        self._communicator = communicator
        self._wire = wire

    def reduce(self, partials: Array) -> Array:
        """See `Reducer.reduce`."""
        total = partials[0] if len(partials) == 1 else partials.sum(axis=0)
        if self._wire is not None:
            self._reduce_narrowly(total, self._wire)
        elif self._communicator.size > 1:
            self._communicator.all_reduce(total)
        return total

    def _reduce_narrowly(self, total: Array, wire: NarrowWire) -> None:
        import torch

        total = torch.as_tensor(total)  # the same memory
        narrow, exact = total[: -wire.num_exact], total[-wire.num_exact :]
        travelling = (narrow * wire.scale).to(wire.dtype)
        if self._communicator.size > 1:
            self._communicator.all_reduce(travelling)
            self._communicator.all_reduce(exact)
        narrow.copy_(travelling).div_(wire.scale)


def combine_in_tree(rows: Array, combine: Combine = operator.add) -> Array:
    """Combine `rows` (k, n) pairwise, neighbours first, into one row (n,); an odd last one waits for the next level."""
    while rows.shape[0] > 1:
        whole = rows.shape[0] // 2 * 2
        combined = combine(rows[0:whole:2], rows[1:whole:2])
        rows = combined if whole == rows.shape[0] else concatenate([combined, rows[whole:]])
    return rows[0]


def _neutral(rows: Array) -> Array:
    """Return `rows` with -0 for each 0: added to any number, 0 and -0 too, that leaves its bits as they are."""
    rows = rows * 1.0
    rows[rows == 0] = -0.0
    return rows
