"""Communicator over mpi4py, for numpy arrays and torch CPU tensors."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm.agent.position import CollectiveNotes, noted
from mpitrain.comm.arrays import Array
from mpitrain.comm.communicator import NodeSharedArray, ReduceOperation, row_bytes_of
from mpitrain.comm.mpi import node_shared

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpitrain.comm.mpi.tensor_memory import TensorMemory


# Largest message from one rank to another: MPI libraries before MPI 4 have 32-bit counts.
LARGEST_MESSAGE_BYTES = 1 << 30
# A patient rank sleeps between two polls for a twentieth of its wait so far, within these limits. Polling takes time
# from the ranks that compute: six ranks that polled every 0.2 ms used a third of a core.
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 2e-4, 5e-3


class MpiCommunicator:
    """`Communicator` over a duplicate of an MPI communicator, so that its messages match no other library's."""

    def __init__(self, parent: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = parent.Dup()
        self._in_place = MPI.IN_PLACE
        self._operations = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}
        self.notes = CollectiveNotes()
        # Must be the same on all ranks; see `_meet`.
        self.is_patient = False
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    @property
    def mpi_comm(self) -> MPI.Intracomm:
        """The mpi4py communicator, for code that calls MPI directly."""
        return self._comm

    @noted
    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
        """See `Communicator.all_reduce`."""
        if isinstance(tensor, np.ndarray):
            self._comm.Allreduce(self._in_place, tensor, self._operations[operation])
        elif tensor.itemsize == 2 and tensor.is_floating_point():
            from mpitrain.comm.mpi.half_precision import all_reduce_halves

            all_reduce_halves(self._comm, self._memory, tensor, operation)
        else:
            self._comm.Allreduce(self._in_place, self._memory.numbers(tensor), self._operations[operation])

    @noted
    def all_gather(self, tensor: Array, row_counts: Sequence[int]) -> Array:
        """See `Communicator.all_gather`."""
        gathered = _empty_like(tensor, (sum(row_counts), *tensor.shape[1:]))
        row_size = math.prod(tensor.shape[1:])
        counts = [n * row_size for n in row_counts]
        target = [gathered, counts] if isinstance(gathered, np.ndarray) else self._memory.parts(gathered, counts)
        self._comm.Allgatherv(self._values(tensor), target)
        return gathered

    @noted
    def all_to_all_rows(self, tensor: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """See `Communicator.all_to_all_rows`."""
        received = _empty_like(tensor, (sum(receive_counts), *tensor.shape[1:]))
        row_bytes = max(row_bytes_of(tensor), 1)
        # Counts and offsets are in rows: in bytes they could exceed 32 bits.
        row = self._mpi.BYTE.Create_contiguous(row_bytes).Commit()
        rows_a_round = max(LARGEST_MESSAGE_BYTES // row_bytes, 1)
        num_rounds = self._comm.allreduce(-(-max(send_counts) // rows_a_round), self._mpi.MAX)
        for index in range(num_rounds if row_bytes_of(tensor) else 0):
            first = index * rows_a_round
            sent = [self._buffer(tensor), *_rows_of_round(send_counts, first, rows_a_round), row]
            target = [self._buffer(received), *_rows_of_round(receive_counts, first, rows_a_round), row]
            self._comm.Alltoallv(sent, target)
        row.Free()
        return received

    def node_shared_array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> NodeSharedArray:
        """See `Communicator.node_shared_array`."""
        return node_shared.open_node_shared_array(self, self.split_by_node(), shape, dtype)

    def split_by_node(self) -> MPI.Comm:
        """Return a communicator of the ranks of this rank's node, in rank order. Collective."""
        return self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)

    @noted
    def exchange(self, tensor: Array, partner: int) -> Array:
        """See `Communicator.exchange`."""
        received = _empty_like(tensor, tensor.shape)
        own, target = self._values(tensor), self._values(received)
        self._comm.Sendrecv(own, partner, recvbuf=target, source=partner)
        return received

    @noted
    def broadcast(self, tensor: Array, root: int = 0) -> None:
        """See `Communicator.broadcast`."""
        self._comm.Bcast(self._values(tensor), root)

    @noted
    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """See `Communicator.broadcast_object`."""
        self._meet()
        return self._comm.bcast(value, root)

    @noted
    def all_gather_object(self, value: Any) -> list[Any]:
        """See `Communicator.all_gather_object`."""
        self._meet()
        return list(self._comm.allgather(value))

    @noted
    def barrier(self) -> None:
        """See `Communicator.barrier`."""
        self._meet()
        self._comm.Barrier()

    @functools.cached_property
    def _memory(self) -> TensorMemory:
        from mpitrain.comm.mpi.tensor_memory import TensorMemory  # for torch's tensors only

        return TensorMemory(self._mpi)

    def _values(self, array: Array) -> Any:
        return array if isinstance(array, np.ndarray) else self._memory.values(array)

    def _buffer(self, array: Array) -> Any:
        return array if isinstance(array, np.ndarray) else self._memory.buffer(array)

    def _meet(self) -> None:
        """If `is_patient`, sleep until all ranks have arrived; otherwise return at once. Collective.

        MPI libraries poll while they wait: if ranks outnumber cores, the waiting ranks would take the cores from the
        rank that they wait for, for example the root while it reads or plots.
        """
        if self.is_patient:
            arrival, began_s = self._comm.Ibarrier(), time.monotonic()
            while not arrival.Test():
                waited_s = time.monotonic() - began_s
                time.sleep(min(max(waited_s / 20, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))

    def make_progress(self) -> None:
        """See `Communicator.make_progress`."""
        self._comm.Iprobe()

    def sleep_while_waiting(self) -> None:
        """See `Communicator.sleep_while_waiting`."""
        self.is_patient = True

    def abort(self, exit_code: int) -> None:
        """See `Communicator.abort`."""
        self._mpi.COMM_WORLD.Abort(exit_code)

    def close(self) -> None:
        """See `Communicator.close`."""
        self._comm.Free()


def _empty_like(array: Array, shape: Sequence[int]) -> Array:
    return np.empty(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_empty(tuple(shape))


def _rows_of_round(counts: Sequence[int], first: int, num_rows: int) -> tuple[list[int], list[int]]:
    """Return counts and offsets of each rank's rows in the round that starts at row `first`."""
    starts = itertools.accumulate(counts, initial=0)
    sizes = [min(max(count - first, 0), num_rows) for count in counts]
    return sizes, [start + first for start, _ in zip(starts, counts, strict=False)]
