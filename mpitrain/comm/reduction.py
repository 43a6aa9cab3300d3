"""Sums over the ranks: in a fixed tree, bitwise equal for any number of ranks, or in the library's order.

P  real ranks      V  virtual ranks      k  places of this rank      n  numbers per microbatch
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
    """Sum of rows of partial results over microbatches and ranks."""

    def reduce(self, partials: Array) -> Array:
        """Return the sum of the rows of `partials` over all ranks, on every rank. Collective.

        Parameters
        ----------
        partials : ndarray or Tensor of a floating-point dtype, shape (k, n)
            One row per microbatch of this rank, k at least 1; may be overwritten. n, dtype and the kind (array or
            tensor) must be the same on all ranks, k may differ.

        Returns
        -------
        ndarray or Tensor, shape (n,)
            The sum of all rows of all ranks, of the same dtype and kind; it may share the memory of `partials`.

        Notes
        -----
        The class defines the order of addition. If a rank fails or is missing, see the Notes of `Ranks`.
        """


class FixedTreeReducer:
    """Sum of the V partials in the tree ((0,1),(2,3)),((4,5),(6,7)) for any number of ranks.

    Parameters
    ----------
    communicator : Communicator
        Communicator for the arrays to be added.
    virtual_ranks : VirtualRanks
        Owners of the V partials, with the rank and the size of `communicator`.

    Notes
    -----
    The constructor is not collective. The bits of a sum depend on V and the partials only, and are the same on all
    ranks and for any number of ranks P. If V is a power of two and P divides it: log2(P) exchanges, or one Allreduce
    for an addition on P = 2 ranks; otherwise one gather of a few rows per rank.
    """

    def __init__(self, communicator: Communicator, virtual_ranks: VirtualRanks) -> None:
        self._communicator = communicator
        self._virtual_ranks = virtual_ranks
        blocks = virtual_ranks.blocks
        self._own_blocks, first = blocks[virtual_ranks.rank], virtual_ranks.owned.start
        self._own_rows = [slice(block.start - first, block.stop - first) for block in self._own_blocks]
        self._block_counts = [len(own) for own in blocks]
        self._additions = additions_between([block for own in blocks for block in own])

    def reduce(self, partials: Array, combine: Combine = operator.add) -> Array:
        """See `Reducer.reduce`. k is the number of owned places; the rows are in the order of the places.

        Parameters
        ----------
        partials : ndarray or Tensor of a floating-point dtype, shape (k, n)
            See `Reducer.reduce`. An idle rank passes one row; its zeros change no bit of a sum.
        combine : callable
            `combine(lower, upper)` combines two stacks of rows, shape (m, n); default: addition. It must be the same
            function and return the same bits on all ranks, and must return a row unchanged if the other row belongs to
            an idle place.
        """
        if self._virtual_ranks.is_idle:
            partials = _neutral(partials)
        if self._communicator.size == 2 and self._virtual_ranks.is_even and combine is operator.add:
            # A sum of two numbers has only one order: MPI_Allreduce gives the same bits, faster than an exchange.
            row = combine_in_tree(partials)
            self._communicator.all_reduce(row)
            return row
        if self._virtual_ranks.is_even:
            return self._double_recursively(combine_in_tree(partials, combine), combine)
        return self._gather_blocks(partials, combine)

    def _gather_blocks(self, partials: Array, combine: Combine) -> Array:
        """Return the sum, the same on all ranks: gather one row for each subtree of each rank and add them."""
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
    """Send all but the last `num_exact` numbers in torch's `dtype`, multiplied by `scale` so that none overflows."""

    dtype: Any
    num_exact: int
    scale: float


class LibraryReducer:
    """Sum by the library's Allreduce: for different numbers of ranks the results agree only up to rounding."""

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
    """Combine `rows` (k, n) pairwise, neighbours first, into one row (n,); an odd last row moves to the next level."""
    while rows.shape[0] > 1:
        whole = rows.shape[0] // 2 * 2
        combined = combine(rows[0:whole:2], rows[1:whole:2])
        rows = combined if whole == rows.shape[0] else concatenate([combined, rows[whole:]])
    return rows[0]


def _neutral(rows: Array) -> Array:
    """Return `rows` with -0 for each 0: adding -0 leaves the bits of every number unchanged, also of 0 and -0."""
    rows = rows * 1.0
    rows[rows == 0] = -0.0
    return rows
