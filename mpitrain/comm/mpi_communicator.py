"""The collective verbs over mpi4py, on CPU tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mpitrain.comm.collective_notes import CollectiveNotes, noted
from mpitrain.comm.communicator import ReduceOperation

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiCommunicator:
    """`Communicator` over a duplicate of an MPI communicator, so that our messages never meet another library's."""

    def __init__(self, parent: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = parent.Dup()
        self._operations = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}
        # Set where ranks outnumber cores: a rank that waits in the library spins, and the one it waits for cannot run.
        self.yields_while_waiting = False
        self.notes = CollectiveNotes()
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    @property
    def mpi_comm(self) -> MPI.Intracomm:
        """The MPI communicator itself, for code that speaks MPI directly."""
        return self._comm

    @noted
    def all_reduce(self, tensor: torch.Tensor, operation: ReduceOperation = "sum") -> None:
        """See `Communicator.all_reduce`."""
        self._comm.Allreduce(self._mpi.IN_PLACE, buffer_of(tensor), self._operations[operation])

    @noted
    def all_gather(self, tensor: torch.Tensor, row_counts: Sequence[int]) -> torch.Tensor:
        """See `Communicator.all_gather`."""
        gathered = tensor.new_empty((sum(row_counts), *tensor.shape[1:]))
        row_size = int(np.prod(tensor.shape[1:], dtype=np.int64))
        target = [buffer_of(gathered), [rows * row_size for rows in row_counts]]
        if self.yields_while_waiting:
            self._wait(self._comm.Iallgatherv(buffer_of(tensor), target))
        else:
            self._comm.Allgatherv(buffer_of(tensor), target)
        return gathered

    @noted
    def exchange(self, tensor: torch.Tensor, partner: int) -> torch.Tensor:
        """See `Communicator.exchange`."""
        received = torch.empty_like(tensor)
        if self.yields_while_waiting:
            self._wait(self._comm.Irecv(buffer_of(received), partner), self._comm.Isend(buffer_of(tensor), partner))
        else:
            self._comm.Sendrecv(buffer_of(tensor), partner, recvbuf=buffer_of(received), source=partner)
        return received

    def _wait(self, *requests: MPI.Request) -> None:
        while not self._mpi.Request.Testall(list(requests)):
            os.sched_yield()

    @noted
    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """See `Communicator.broadcast`."""
        self._comm.Bcast(buffer_of(tensor), root)

    @noted
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """See `Communicator.broadcast_object`."""
        return self._comm.bcast(value, root)

    @noted
    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Communicator.all_gather_object`."""
        return list(self._comm.allgather(value))

    @noted
    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self._comm.Barrier()

    def abort(self, exit_code: int) -> None:
        """See `Communicator.abort`."""
        self._mpi.COMM_WORLD.Abort(exit_code)

    def close(self) -> None:
        """See `Communicator.close`."""
        self._comm.Free()


def buffer_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a contiguous CPU tensor as an array that MPI reads and writes in place.

    Raises TypeError for dtypes that MPI cannot add: seen as int16, bfloat16 1 + 1 would be 1.7e38 without a word.
    """
    if tensor.dtype in (torch.bfloat16, torch.float16):
        raise TypeError(f"MPI has no sum for {tensor.dtype}: convert to float32 before the collective")
    if not tensor.is_contiguous():
        raise ValueError(
            f"MPI needs a contiguous tensor, got strides {tensor.stride()} for shape {tuple(tensor.shape)}"
        )
    array: np.ndarray[Any, Any] = tensor.detach().numpy()
    return array
