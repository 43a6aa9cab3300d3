"""Adding up among the ranks inside of the compiled step: in memory that a node's ranks share, by MPI among the nodes.

P  ranks      R  rows that the ranks of a node contribute      n  numbers a row
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mpitrain.comm.mpi.c_functions import find_c_functions
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.errors import LaunchError
from mpitrain.train.compiled.node_exchange import NodeExchange
from mpitrain.train.compiled.structs import KernelSharedSum, KernelSumTimes
from mpitrain.train.compiled.sum_plan import plan_by_node, plan_in_tree

if TYPE_CHECKING:
    from mpitrain.comm.communicator import NodeSharedTensor

# Beyond this the ranks' reading of all rows costs more than an Allreduce, which halves what it moves.
LARGEST_SHARED_BYTES = 8 * 2**20


@dataclass(frozen=True)
class NodeRows:
    """The rows that the ranks of this node contribute, and which of them are this rank's.

    The node's memory has room for `num_in_memory`.
    """

    num_rows: int
    first_row: int
    num_own_rows: int
    num_in_memory: int


class NodeSum:
    """Shared memory for the sums of a run, and what the kernel must know of it. Making one is collective.

    On one node the rows of all ranks are added in the tree over all of them: the fixed order, if they are the virtual
    ranks' or aligned runs of theirs. `add_nodes` lets the sum reach over several.
    """

    def __init__(self, ranks: Ranks, kernel: ctypes.CDLL, rows: NodeRows) -> None:
        num_bytes = kernel.shared_bytes(rows.num_in_memory)
        self._memory: NodeSharedTensor = ranks.cpu.node_shared_tensor((num_bytes,), torch.uint8)
        if self._memory.fills:
            self._memory.tensor.zero_()
        self._memory.publish()
        self._exchange: NodeExchange | None = None
        self._times, self._read_clock = KernelSumTimes(), kernel.clock_ticks
        self._started = self._read_clock(), time.perf_counter()
        self._description = KernelSharedSum(
            meeting=self._memory.tensor.data_ptr(),
            num_ranks=ranks.local_world_size,
            num_rows=rows.num_rows,
            first_row=rows.first_row,
            num_own_rows=rows.num_own_rows,
            shares_cores=ranks.local_world_size > ranks.node_cores,
            times=ctypes.addressof(self._times),
        )
        self.address = ctypes.addressof(self._description)

    def add_nodes(self, exchange: NodeExchange) -> None:
        """Let the nodes exchange their sums; it is closed with this one."""
        self._exchange = exchange
        self._description.exchange = exchange.address

    def seconds(self) -> tuple[float, float, float]:
        """Return what this rank has spent on the sums since it was made, in seconds.

        Waiting for later ranks of its node, working, and both together where the nodes exchange.
        """
        ticks, started_s = self._started
        tick_s = (time.perf_counter() - started_s) / max(self._read_clock() - ticks, 1)
        times = self._times
        worked = times.worked * times.num_sums / times.num_timed if times.num_timed else 0.0
        return times.waited * tick_s, worked * tick_s, times.exchanged * tick_s

    def check(self, answer: int) -> int:
        """Return what the kernel answered. Raises mpi4py's error where that is one of MPI."""
        if answer < 0 and self._exchange is not None:
            raise self._exchange.failure()
        return answer

    def close(self) -> None:
        """Give the memory back. Collective."""
        if self._exchange is not None:
            self._exchange.close()
        self._memory.close()


def open_node_sum(ranks: Ranks, kernel: ctypes.CDLL, layout: VirtualRanks, gathers: bool) -> NodeSum | None:
    """Return where the ranks of a run add up: every virtual rank's row if `gathers`, else a row of each. Collective.

    None where they have neither one memory nor MPI between their nodes, or where messages are faster.
    """
    own = layout.owned if gathers else range(ranks.rank, ranks.rank + 1)
    num_rows = layout.num_virtual_ranks if gathers else ranks.world_size
    try:
        if ranks.world_size > 1 and ranks.shares_memory and _fits(kernel, num_rows, 2 * num_rows):
            # Two buffers, used in turn.
            return NodeSum(ranks, kernel, NodeRows(num_rows, own.start, len(own), 2 * num_rows))
        if ranks.num_nodes > 1 and ranks.backend == "mpi" and isinstance(ranks.cpu, MpiCommunicator):
            return _open_over_nodes(ranks, ranks.cpu, kernel, own)
    except LaunchError:  # on all ranks: a node has no room for it, and messages serve too
        pass
    return None


def _open_over_nodes(ranks: Ranks, communicator: MpiCommunicator, kernel: ctypes.CDLL, own: range) -> NodeSum | None:
    """Return a sum over several nodes; None where the plan is too large, or a rank cannot find MPI. Collective."""
    functions = find_c_functions()
    answers = ranks.gather_object((ranks.node_rank, len(own), functions is not None))
    node_of_row = [node for node, num_rows, _ in answers for _ in range(num_rows)]
    plan = plan_by_node(node_of_row) if ranks.reduction == "any" else plan_in_tree(node_of_row)
    num_exchanged = plan.num_rows_exchanged
    num_rows = [of_node.num_rows for of_node in plan.within]
    is_possible = all(has_found for *_, has_found in answers)
    if (
        functions is None
        or not is_possible
        or not _fits(kernel, max(*num_rows, num_exchanged), max(num_rows) + num_exchanged)
    ):
        return None
    first_row = sum(num_rows for node, num_rows, _ in answers[: ranks.rank] if node == ranks.node_rank)
    rows = NodeRows(num_rows[ranks.node_rank], first_row, len(own), num_rows[ranks.node_rank] + num_exchanged)
    node_sum = NodeSum(ranks, kernel, rows)
    node_sum.add_nodes(NodeExchange(ranks, communicator, functions, plan))
    return node_sum


def _fits(kernel: ctypes.CDLL, num_rows: int, num_in_memory: int) -> bool:
    is_small: bool = kernel.shared_bytes(num_in_memory) <= LARGEST_SHARED_BYTES
    return is_small and num_rows <= int(kernel.most_shared_rows())


def num_at_once(ranks: Ranks) -> float:
    """Return how many ranks compute at a time: no more than there are cores on their nodes. Collective."""
    own = min(1.0, ranks.node_cores / ranks.local_world_size)
    return own * ranks.world_size if ranks.num_nodes == 1 else float(sum(ranks.gather_object(own)))
