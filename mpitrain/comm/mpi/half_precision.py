"""Reductions of float16 and bfloat16, which MPI does not have: sent as two bytes per value, combined in float32.

P  ranks      n  values

Each rank receives its part of the values from all ranks, combines them in float32 in rank order, rounds once, and sends
the result to all ranks: the same bits on every rank. Results for different numbers of ranks agree up to rounding in
float32 and one rounding to the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from mpitrain.comm.mpi.tensor_memory import TensorMemory
from mpitrain.comm.virtual_ranks import rank_range

if TYPE_CHECKING:
    from mpi4py import MPI

# Number of values combined at a time, which bounds the extra memory.
CHUNK_VALUES = 1 << 24
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def all_reduce_halves(
    comm: MPI.Comm, memory: TensorMemory, tensor: torch.Tensor, operation: str = "sum", divisor: int = 1
) -> None:
    """Reduce the contiguous float16 or bfloat16 `tensor` over all ranks, in place, and divide by `divisor`. Collective.

    `operation` is "sum", "product", "min" or "max". Shape, dtype, operation and divisor must be the same on all ranks.
    """
    if comm.Get_size() == 1 and divisor == 1:
        return
    for chunk in tensor.detach().view(-1).split(CHUNK_VALUES):
        counts = [len(rank_range(chunk.numel(), comm.Get_size(), rank)) for rank in range(comm.Get_size())]
        reduced = reduce_scatter_halves(comm, memory, chunk, counts, operation, divisor)
        comm.Allgatherv(memory.values(reduced), memory.parts(chunk, counts))


def reduce_scatter_halves(
    comm: MPI.Comm,
    memory: TensorMemory,
    values: torch.Tensor,
    counts: Sequence[int],
    operation: str = "sum",
    divisor: int = 1,
) -> torch.Tensor:
    """Reduce `values`, n = sum(counts), over all ranks; return this rank's part, `counts[rank]` values. Collective.

    `counts` must be the same on all ranks.
    """
    count = counts[comm.Get_rank()]
    received = values.new_empty((comm.Get_size(), count))
    comm.Alltoallv(memory.parts(values, counts), memory.parts(received, [count] * comm.Get_size()))
    # In float32, in rank order, divided before the one rounding to the dtype of `values`.
    total = received[0].float()
    for row in received[1:]:
        total = _COMBINE[operation](total, row.float())
    if divisor > 1:
        total /= divisor
    return total.to(values.dtype)
