"""Communicator over a torch.distributed group: gloo if the ranks do not use MPI, nccl between GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from mpitrain.comm.agent.position import CollectiveNotes, noted
from mpitrain.comm.agreement import mark_agreed
from mpitrain.comm.arrays import Array
from mpitrain.comm.communicator import NodeSharedArray, ReduceOperation
from mpitrain.comm.tcp.plain_data import NotPlainError, decode, encode
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
    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
        """See `Communicator.all_reduce`."""
        dist.all_reduce(torch.as_tensor(tensor), op=_OPERATIONS[operation], group=self._group)

    @noted
    def all_gather(self, tensor: Array, row_counts: Sequence[int]) -> Array:
        """See `Communicator.all_gather`."""
        return _like(tensor, torch.cat(self._gather_parts(torch.as_tensor(tensor), row_counts)))

    def _gather_parts(self, tensor: torch.Tensor, row_counts: Sequence[int]) -> list[torch.Tensor]:
        # Neither gloo nor nccl gathers unequal sizes: all ranks send the largest shape, and extra rows are dropped.
        padded = tensor.new_zeros((max(row_counts), *tensor.shape[1:]))
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in row_counts]
        dist.all_gather(parts, padded, group=self._group)
        return [part[:rows] for part, rows in zip(parts, row_counts, strict=True)]

    @noted
    def all_to_all_rows(self, tensor: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """See `Communicator.all_to_all_rows`."""
        sent = torch.as_tensor(tensor)
        received = sent.new_empty((sum(receive_counts), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, list(receive_counts), list(send_counts), group=self._group)
        return _like(tensor, received)

    @noted
    def node_shared_array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> NodeSharedArray:
        """See `Communicator.node_shared_array`."""
        raise mark_agreed(
            LaunchError(
                "memory shared by a node's ranks needs MPI between them; start with mpirun or srun --mpi=pmi2 (or pmix)"
            )
        )

    @noted
    def exchange(self, tensor: Array, partner: int) -> Array:
        """See `Communicator.exchange`."""
        sent = torch.as_tensor(tensor)
        received = torch.empty_like(sent)
        both = [
            dist.P2POp(dist.isend, sent, partner, self._group),
            dist.P2POp(dist.irecv, received, partner, self._group),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return _like(tensor, received)

    @noted
    def broadcast(self, tensor: Array, root: int = 0) -> None:
        """See `Communicator.broadcast`."""
        dist.broadcast(torch.as_tensor(tensor), src=root, group=self._group)

    @noted
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """See `Communicator.broadcast_object`."""
        message = _as_tensor(encode(value) if self.rank == root else b"", self._device)
        length = torch.tensor([len(message)], device=self._device)
        dist.broadcast(length, src=root, group=self._group)
        if self.rank != root:
            message = torch.empty(int(length), dtype=torch.uint8, device=self._device)
        dist.broadcast(message, src=root, group=self._group)
        return value if self.rank == root else _received(message)

    @noted
    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Communicator.all_gather_object`."""
        message = _as_tensor(encode(value), self._device)
        lengths = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(message)], device=self._device), group=self._group)
        return [_received(part) for part in self._gather_parts(message, [int(length) for length in lengths])]

    @property
    def _device(self) -> torch.device:
        is_on_gpu = dist.get_backend(self._group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if is_on_gpu else torch.device("cpu")

    @noted
    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        dist.barrier(group=self._group)

    def make_progress(self) -> None:
        """See `Communicator.make_progress`. Does nothing: gloo has its own progress threads."""

    def sleep_while_waiting(self) -> None:
        """See `Communicator.sleep_while_waiting`. Does nothing: gloo always sleeps instead of polling."""

    def abort(self, exit_code: int) -> None:
        """See `Communicator.abort`."""
        # gloo cannot abort other processes: they fail when this process's connections close.
        os._exit(exit_code)

    def close(self) -> None:
        """See `Communicator.close`."""
        dist.destroy_process_group(self._group)


def _like(given: Array, answer: torch.Tensor) -> Array:
    return answer.numpy() if isinstance(given, np.ndarray) else answer


def _as_tensor(message: bytes, device: torch.device) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)
    return flat.to(device)


def _received(message: torch.Tensor) -> Any:
    # torch.distributed's object collectives send pickles, through which a process posing as a rank could run code.
    try:
        return decode(message.cpu().numpy().tobytes())
    except NotPlainError as error:
        raise LaunchError(
            f"received data that is not a message of this version of mpitrain ({error}): check that all ranks have the "
            "same version, and which other processes can reach the rendezvous port"
        ) from error
