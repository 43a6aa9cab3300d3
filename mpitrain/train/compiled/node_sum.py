"""Sums over the ranks inside the compiled step: in shared memory of the ranks of a node, by MPI between nodes.

P  ranks      R  rows that the ranks of a node contribute, each the sum of a subtree      n  numbers a row
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.comm import Ranks, address_of
from mpitrain.comm.mpi.c_functions import find_c_functions
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.errors import LaunchError
from mpitrain.train.compiled.node_exchange import NodeExchange
from mpitrain.train.compiled.structs import KernelNumbers, KernelSharedSum, KernelSumTimes
from mpitrain.train.compiled.sum_plan import SumPlan, plan_by_node, plan_in_tree, plan_on_node

if TYPE_CHECKING:
    from mpitrain.comm.communicator import NodeSharedArray

# Above this size reading the rows of all ranks costs more than an Allreduce, which halves the amount of data moved.
LARGEST_SHARED_BYTES = 8 * 2**20
# By shares a rank reads its share of each row, however many rows there are; this bounds the memory of the node.
LARGEST_BYTES_OF_SHARES = 2**30
_DAMAGED = -2  # of `SumResult` in node_sum.hpp


class NodeSum:
    """Shared memory for the sums of a run, and its description for the kernel. Creating one is collective.

    `plan` adds the rows of this node's ranks; the rows `own` are this rank's; the memory has room for `num_in_memory`
    rows: two buffers of all rows, or all rows and two results of the shares (share_sum.hpp). `add_nodes` extends the
    sum to several nodes.
    """

    def __init__(self, ranks: Ranks, kernel: ctypes.CDLL, own: range, num_in_memory: int, plan: SumPlan) -> None:
        num_bytes = kernel.shared_bytes(num_in_memory)
        self._memory: NodeSharedArray = ranks.cpu.node_shared_array((num_bytes,), np.uint8)
        # All of it is written now: memory that the system cannot provide later would end a step with a bus error.
        share, of = self._memory.local_rank, self._memory.local_world_size
        self._memory.array[num_bytes * share // of : num_bytes * (share + 1) // of] = 0
        self._memory.publish()
        self._exchange: NodeExchange | None = None
        self._numbers = KernelNumbers()
        self._times, self._read_clock = KernelSumTimes(), kernel.clock_ticks
        self._started = self._read_clock(), time.perf_counter()
        self._description = KernelSharedSum(
            meeting=address_of(self._memory.array),
            num_ranks=ranks.local_world_size,
            num_rows=plan.num_rows,
            rank=ranks.local_rank,
            first_row=own.start,
            num_own_rows=len(own),
            shares_cores=ranks.local_world_size > ranks.node_cores,
            times=ctypes.addressof(self._times),
            counts=ctypes.addressof(ranks.cpu.notes.meetings),
            plan=self._numbers.keep_plan(plan),
        )
        self.address = ctypes.addressof(self._description)

    def add_nodes(self, exchange: NodeExchange) -> None:
        """Extend the sum over the nodes by `exchange`, which `close` also closes."""
        self._exchange = exchange
        self._description.exchange = exchange.address

    def seconds(self) -> tuple[float, float, float]:
        """Return the seconds that this rank has spent on the sums.

        Three numbers: waiting for other ranks of its node, computing, and the exchange between nodes (with waiting).
        """
        ticks, started_s = self._started
        tick_s = (time.perf_counter() - started_s) / max(self._read_clock() - ticks, 1)
        times = self._times
        worked = times.worked * times.num_sums / times.num_timed if times.num_timed else 0.0
        return times.waited * tick_s, worked * tick_s, times.exchanged * tick_s

    def check(self, answer: int) -> int:
        """Return `answer`, the kernel's result. Raises mpi4py's error after an MPI error, LaunchError after damage."""
        if answer == _DAMAGED:
            raise LaunchError(
                "the shared memory of this node no longer holds the numbers that its ranks have written: the memory is "
                "damaged (a flipped bit?): continue with --resume, and have the memory of this host checked"
            )
        if answer < 0 and self._exchange is not None:
            raise self._exchange.failure()
        return answer

    def close(self) -> None:
        """Free the memory. Collective."""
        if self._exchange is not None:
            self._exchange.close()
        self._memory.close()


def open_node_sum(ranks: Ranks, kernel: ctypes.CDLL, subtrees: Sequence[Sequence[range]]) -> NodeSum | None:
    """Return the sum over the ranks of a run; each row of a rank is the sum of one of its `subtrees`. Collective.

    None if the ranks have neither a common shared memory nor MPI between their nodes, or if an Allreduce is faster.
    """
    counts = [len(own) for own in subtrees]
    num_rows, first_row = sum(counts), sum(counts[: ranks.rank])
    try:
        # Two rows for results of shares, or two buffers for the rows; used in turn.
        by_shares = bool(kernel.adds_by_shares())
        num_in_memory, largest = (
            (num_rows + 2, LARGEST_BYTES_OF_SHARES) if by_shares else (2 * num_rows, LARGEST_SHARED_BYTES)
        )
        if ranks.world_size > 1 and ranks.shares_memory and _fits(kernel, num_rows, num_in_memory, largest):
            plan = plan_on_node([rows for own in subtrees for rows in own])
            return NodeSum(ranks, kernel, range(first_row, first_row + counts[ranks.rank]), num_in_memory, plan)
        if ranks.num_nodes > 1 and ranks.backend == "mpi" and isinstance(ranks.cpu, MpiCommunicator):
            return _open_over_nodes(ranks, ranks.cpu, kernel, subtrees)
    except LaunchError:  # on all ranks: a node lacks shared memory; an Allreduce is used instead
        pass
    return None


def _open_over_nodes(
    ranks: Ranks, communicator: MpiCommunicator, kernel: ctypes.CDLL, subtrees: Sequence[Sequence[range]]
) -> NodeSum | None:
    """Return a sum over several nodes; None if it is too large or if a rank cannot find MPI's functions. Collective."""
    functions = find_c_functions()
    answers = ranks.gather_object((ranks.node_rank, functions is not None))
    node_of_row = [node for (node, _), own in zip(answers, subtrees, strict=True) for _ in own]
    rows = [leaves for own in subtrees for leaves in own]
    plan = plan_by_node(node_of_row) if ranks.reduction == "any" else plan_in_tree(node_of_row, rows)
    num_exchanged = plan.num_rows_exchanged
    num_rows = [of_node.num_rows for of_node in plan.within]
    is_possible = all(has_found for _, has_found in answers)
    if (
        functions is None
        or not is_possible
        or not _fits(kernel, max(*num_rows, num_exchanged), max(num_rows) + num_exchanged, LARGEST_SHARED_BYTES)
    ):
        return None
    own_node = plan.within[ranks.node_rank]
    first_row = sum(
        len(own) for (node, _), own in zip(answers[: ranks.rank], subtrees, strict=False) if node == ranks.node_rank
    )
    own = range(first_row, first_row + len(subtrees[ranks.rank]))
    node_sum = NodeSum(ranks, kernel, own, own_node.num_rows + num_exchanged, own_node)
    node_sum.add_nodes(NodeExchange(ranks, communicator, functions, plan))
    return node_sum


def _fits(kernel: ctypes.CDLL, num_rows: int, num_in_memory: int, largest: int) -> bool:
    is_small: bool = kernel.shared_bytes(num_in_memory) <= largest
    return is_small and num_rows <= int(kernel.most_shared_rows())


def num_at_once(ranks: Ranks) -> float:
    """Return the number of ranks that compute at the same time: at most the number of their cores. Collective."""
    own = min(1.0, ranks.node_cores / ranks.local_world_size)
    return own * ranks.world_size if ranks.num_nodes == 1 else float(sum(ranks.gather_object(own)))
