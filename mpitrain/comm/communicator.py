"""Interface to a message-passing library: the same operations over MPI and over torch.distributed.

Unless documented otherwise, every method is collective over all `size` ranks (`exchange`: over the pair): all ranks
must call the methods in the same order, with numpy arrays or torch tensors of the same shape and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy.typing as npt

from mpitrain.comm.agent.position import CollectiveNotes
from mpitrain.comm.arrays import Array

if TYPE_CHECKING:
    from mpi4py import MPI

ReduceOperation = Literal["sum", "min", "max"]


@dataclass(frozen=True)
class NodeSharedArray:
    """Array in memory shared by a node's ranks: `if shared.fills: shared.array[...] = x`, then `shared.publish()`."""

    array: npt.NDArray[Any]
    local_rank: int
    local_world_size: int
    _window: MPI.Win
    _node: MPI.Comm

    @property
    def fills(self) -> bool:
        """Whether this is the node's first rank, which writes the values."""
        return self.local_rank == 0

    def publish(self) -> None:
        """Make the values written by the node's first rank visible to its other ranks. Collective over the node."""
        # Sync orders this rank's view of the memory; the barrier orders the ranks.
        self._window.Sync()
        self._node.Barrier()
        self._window.Sync()

    def close(self) -> None:
        """Free the memory; `array` and its views must not be used afterwards. Collective over the node."""
        self._window.Unlock_all()
        self._window.Free()
        self._node.Free()


class Communicator(Protocol):
    """A fixed group of `size` ranks; this process has number `rank`."""

    rank: int
    size: int
    notes: CollectiveNotes

    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
        """Replace the contiguous `tensor` by its reduction over all ranks. Collective."""

    def all_gather(self, tensor: Array, row_counts: Sequence[int]) -> Array:
        """Concatenate the ranks' tensors `(row_counts[rank], ...)` along axis 0, in rank order. Collective.

        `row_counts` must be the same on all ranks; counts may be 0.
        """

    def all_to_all_rows(self, tensor: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """Distribute the rows of `tensor` (n, ...): the first `send_counts[0]` to rank 0, and so on. Collective.

        Returns (sum(receive_counts), ...): rank 0's rows for this rank, then rank 1's, and so on. `send_counts[b]` on
        rank a must equal `receive_counts[a]` on rank b. Counts may be 0; the total may exceed 2^31 bytes.
        """

    def node_shared_array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> NodeSharedArray:
        """Return an array in memory that all ranks of a node share, so that a node stores large data once. Collective.

        The node's first rank writes it, then all its ranks call `publish`. `shape` and `dtype` must be the same on the
        ranks of a node. Raises LaunchError, on all ranks, if the ranks do not use MPI or a node lacks the memory.
        """

    def exchange(self, tensor: Array, partner: int) -> Array:
        """Send `tensor` to rank `partner` and return its tensor of the same shape. Collective over the pair."""

    def broadcast(self, tensor: Array, root: int = 0) -> None:
        """Replace the contiguous `tensor` by that of rank `root`. Collective."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the picklable `value` of rank `root` on every rank. Collective; other ranks' values are ignored."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, on every rank. Collective."""

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""

    def make_progress(self) -> None:
        """Let the library make progress on pending messages. Not collective."""

    def abort(self, exit_code: int) -> None:
        """Terminate every process of the job immediately. Not collective; does not return."""

    def sleep_while_waiting(self) -> None:
        """From now on sleep instead of polling in `barrier` and in collectives of objects.

        For ranks that may arrive at very different times. All ranks must call it, or none.
        """

    def close(self) -> None:
        """Free the resources of the communicator. Collective."""


def row_bytes_of(tensor: Array) -> int:
    """Return the number of bytes in one row of `tensor` (n, ...), also if n is 0."""
    num_bytes: int = math.prod(tensor.shape[1:]) * tensor.itemsize
    return num_bytes
