"""Reductions of float16 and bfloat16 over MPI, which has neither: sent as two bytes a value, added in float32.

P  ranks      n  values

Each rank receives its part of the values from all ranks, combines them in float32 in rank order, rounds once, and hands
the result to all: the same bits on every rank. Other numbers of ranks agree to the rounding of float32 and that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from mpitrain.comm.mpi.tensor_memory import TensorMemory
from mpitrain.comm.virtual_ranks import rank_range

if TYPE_CHECKING:
    from mpi4py import MPI

# Values combined at a time: bounds the memory besides the tensor.
PIECE_VALUES = 1 << 24
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def all_reduce_halves(
    comm: MPI.Comm, memory: TensorMemory, tensor: torch.Tensor, operation: str = "sum", divisor: int = 1
) -> None:
    """Replace contiguous `tensor` (float16 or bfloat16) by its reduction over all ranks, over `divisor`. Collective.

    `operation` is "sum", "product", "min" or "max". Shape, dtype, operation and divisor must agree on all ranks.
    """
    if comm.Get_size() == 1 and divisor == 1:
        return
    for piece in tensor.detach().view(-1).split(PIECE_VALUES):
        counts = [len(rank_range(piece.numel(), comm.Get_size(), rank)) for rank in range(comm.Get_size())]
        mine = reduce_scatter_halves(comm, memory, piece, counts, operation, divisor)
        comm.Allgatherv(memory.values(mine), memory.parts(piece, counts))


def reduce_scatter_halves(
    comm: MPI.Comm,
    memory: TensorMemory,
    values: torch.Tensor,
    counts: Sequence[int],
    operation: str = "sum",
    divisor: int = 1,
) -> torch.Tensor:
    """Return this rank's part, `counts[rank]` of the n = sum(counts) reduced `values`. Collective.

    `counts` must agree on all ranks.
    """
    count = counts[comm.Get_rank()]
    received = values.new_empty((comm.Get_size(), count))
    comm.Alltoallv(memory.parts(values, counts), memory.parts(received, [count] * comm.Get_size()))
    total = received[0].float()
    for row in received[1:]:
        total = _COMBINE[operation](total, row.float())
    if divisor > 1:
        total /= divisor
    return total.to(values.dtype)
