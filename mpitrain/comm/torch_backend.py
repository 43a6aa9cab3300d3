"""The collective verbs over a torch.distributed group: gloo where no MPI connects the ranks, nccl between GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from mpitrain.comm.agreement import mark_agreed
from mpitrain.comm.communicator import NodeSharedTensor, ReduceOperation
from mpitrain.comm.watch.notes import CollectiveNotes, noted
from mpitrain.errors import LaunchError

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}


class TorchCommunicator:
    """`Communicator` over an initialised torch.distributed process group (None: the default group)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.notes = CollectiveNotes()
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    @noted
    def all_reduce(self, tensor: torch.Tensor, operation: ReduceOperation = "sum") -> None:
        """See `Communicator.all_reduce`."""
        dist.all_reduce(tensor, op=_OPERATIONS[operation], group=self._group)

    @noted
    def all_gather(self, tensor: torch.Tensor, row_counts: Sequence[int]) -> torch.Tensor:
        """See `Communicator.all_gather`."""
        # Neither gloo nor nccl gathers unequal parts: all send the largest shape, and the surplus rows are dropped.
        padded = tensor.new_zeros((max(row_counts), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in row_counts]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:rows] for part, rows in zip(parts, row_counts, strict=True)])

    @noted
    def all_to_all_rows(
        self, tensor: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> torch.Tensor:
        """See `Communicator.all_to_all_rows`."""
        received = tensor.new_empty((sum(receive_counts), *tensor.shape[1:]))
        dist.all_to_all_single(received, tensor, list(receive_counts), list(send_counts), group=self._group)
        return received

    @noted
    def node_shared_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> NodeSharedTensor:
        """See `Communicator.node_shared_tensor`."""
        raise mark_agreed(
            LaunchError(
                "memory shared by a node's ranks needs MPI between them; start with mpirun or srun --mpi=pmi2 (or pmix)"
            )
        )

    @noted
    def exchange(self, tensor: torch.Tensor, partner: int) -> torch.Tensor:
        """See `Communicator.exchange`."""
        received = torch.empty_like(tensor)
        both = [
            dist.P2POp(dist.isend, tensor, partner, self._group),
            dist.P2POp(dist.irecv, received, partner, self._group),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return received

    @noted
    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """See `Communicator.broadcast`."""
        dist.broadcast(tensor, src=root, group=self._group)

    @noted
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """See `Communicator.broadcast_object`."""
        box = [value]
        dist.broadcast_object_list(box, src=root, group=self._group)
        return box[0]

    @noted
    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Communicator.all_gather_object`."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    @noted
    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        dist.barrier(group=self._group)

    def be_patient(self) -> None:
        """See `Communicator.be_patient`: gloo's ranks always wait asleep."""

    def abort(self, exit_code: int) -> None:
        """See `Communicator.abort`."""
        # No message can end the other processes: they see the closed connections and end with their own error.
        os._exit(exit_code)

    def close(self) -> None:
        """See `Communicator.close`."""
        dist.destroy_process_group(self._group)
