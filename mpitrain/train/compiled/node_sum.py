"""Adding up among the ranks of one node, through memory that they share, inside of the compiled step.

P  ranks      R  rows that the ranks contribute      n  numbers a row
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.errors import LaunchError
from mpitrain.train.compiled.structs import KernelSharedSum, KernelSumTimes

if TYPE_CHECKING:
    from mpitrain.comm.communicator import NodeSharedTensor

# Beyond this the ranks' reading of all rows costs more than an Allreduce, which halves what it moves.
LARGEST_SHARED_BYTES = 8 * 2**20


class NodeSum:
    """Shared memory for the sums of a run, and what the kernel must know of it. Making one is collective.

    The rows of all ranks, of which each contributes `num_own_rows` from `first_row` on, are added in the tree over all
    of them: the fixed order, if they are the virtual ranks' or aligned runs of theirs.
    """

    def __init__(self, ranks: Ranks, kernel: ctypes.CDLL, num_rows: int, first_row: int, num_own_rows: int) -> None:
        self._memory: NodeSharedTensor = ranks.cpu.node_shared_tensor((kernel.shared_bytes(num_rows),), torch.uint8)
        if self._memory.fills:
            self._memory.tensor.zero_()
        self._memory.publish()
        num_ranks = ranks.world_size
        self._times, self._read_clock = KernelSumTimes(), kernel.clock_ticks
        self._started = self._read_clock(), time.perf_counter()
        self._description = KernelSharedSum(
            meeting=self._memory.tensor.data_ptr(),
            num_ranks=num_ranks,
            num_rows=num_rows,
            first_row=first_row,
            num_own_rows=num_own_rows,
            shares_cores=num_ranks > ranks.node_cores,
            times=ctypes.addressof(self._times),
        )
        self.address = ctypes.addressof(self._description)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds that this rank has waited for later ones, and worked for the sums, since it was made."""
        ticks, started_s = self._started
        tick_s = (time.perf_counter() - started_s) / max(self._read_clock() - ticks, 1)
        times = self._times
        worked = times.worked * times.num_sums / times.num_timed if times.num_timed else 0.0
        return times.waited * tick_s, worked * tick_s

    def close(self) -> None:
        """Give the memory back. Collective."""
        self._memory.close()


def open_node_sum(ranks: Ranks, kernel: ctypes.CDLL, layout: VirtualRanks, gathers: bool) -> NodeSum | None:
    """Return where the ranks of a run add up: every virtual rank's row if `gathers`, else a row of each. Collective.

    None where they share no memory, or where messages are faster.
    """
    num_ranks = ranks.world_size
    num_rows = layout.num_virtual_ranks if gathers else num_ranks
    if num_ranks == 1 or not ranks.shares_memory or num_rows > kernel.most_shared_rows():
        return None
    if kernel.shared_bytes(num_rows) > LARGEST_SHARED_BYTES:
        return None
    own = layout.owned if gathers else range(ranks.rank, ranks.rank + 1)
    try:
        return NodeSum(ranks, kernel, num_rows, own.start, len(own))
    except LaunchError:  # on all ranks: the node has no room for it, and messages serve too
        return None
