"""Adding up among the ranks of one node, through memory that they share, inside of the compiled step.

P  ranks      R  rows that the ranks contribute      n  numbers a row
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.train.compiled.build import KernelSharedSum

if TYPE_CHECKING:
    from mpitrain.comm.communicator import NodeSharedTensor

# Beyond this the ranks' reading of all rows costs more than an Allreduce, which halves what it moves.
LARGEST_SHARED_BYTES = 8 * 2**20
# About 100 us: longer than ranks with a core each are apart, shorter than what a sleep would cost a late one.
SPINS = 4000


class NodeSum:
    """Shared memory for the sums of a run, and what the kernel must know of it. Making one is collective.

    Its rows are added in the tree over all of them: the fixed order, if they are the virtual ranks' or aligned runs of
    theirs. `num_ranks` of the node's ranks add up; where they are not alone on their cores, they do not wait busily.
    """

    def __init__(
        self, ranks: Ranks, kernel: ctypes.CDLL, num_ranks: int, num_rows: int, first_row: int, num_own_rows: int,
        is_crowded: bool,
    ) -> None:  # fmt: skip
        self._memory: NodeSharedTensor = ranks.cpu.node_shared_tensor((kernel.shared_bytes(num_rows),), torch.uint8)
        if self._memory.fills:
            self._memory.tensor.zero_()
        self._memory.publish()
        self._description = KernelSharedSum(
            meeting=self._memory.tensor.data_ptr(),
            num_ranks=num_ranks,
            num_rows=num_rows,
            first_row=first_row,
            num_own_rows=num_own_rows,
            num_spins=0 if is_crowded else SPINS,
        )
        self.address = ctypes.addressof(self._description)

    def close(self) -> None:
        """Give the memory back. Collective."""
        self._memory.close()


def can_share(ranks: Ranks, kernel: ctypes.CDLL, num_rows: int) -> bool:
    """Tell whether all ranks of the run share a node's memory, and the sums are small enough for it to pay."""
    fits = num_rows <= kernel.most_shared_rows() and kernel.shared_bytes(num_rows) <= LARGEST_SHARED_BYTES
    return fits and ranks.shares_memory and ranks.world_size > 1
