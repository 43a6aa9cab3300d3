"""What the package needs of a message-passing library: the same verbs over MPI and over torch.distributed.

Every method is collective over all `size` ranks (`exchange`: over the pair): all of them must call it, in the same
order, with arrays of the same shape and dtype unless said otherwise: numpy's, or torch's tensors.
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
    """The same memory on every rank of a node: `if shared.fills: shared.array[...] = x`, then `shared.publish()`."""

    array: npt.NDArray[Any]
    local_rank: int
    local_world_size: int
    _window: MPI.Win
    _node: MPI.Comm

    @property
    def fills(self) -> bool:
        """True on the node's first rank, which writes the values."""
        return self.local_rank == 0

    def publish(self) -> None:
        """Make what the node's first rank has written visible to its other ranks. Collective over the node."""
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
    """A fixed group of `size` ranks, of which this process is number `rank`."""

    rank: int
    size: int
    notes: CollectiveNotes

    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
        """Replace a contiguous `tensor` by its reduction over all ranks. Collective."""

    def all_gather(self, tensor: Array, row_counts: Sequence[int]) -> Array:
        """Concatenate the ranks' tensors `(row_counts[rank], ...)` along axis 0, in rank order. Collective.

        `row_counts` must be the same on all ranks; a rank may hold no row.
        """

    def all_to_all_rows(self, tensor: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """Distribute the rows of `tensor` (n, ...): the first `send_counts[0]` to rank 0, and so on. Collective.

        Returns (sum(receive_counts), ...): rank 0's rows for this rank, then rank 1's. Rank a's `send_counts[b]` must
        be rank b's `receive_counts[a]`. Counts may be 0, and the whole larger than 2^31 bytes.
        """

    def node_shared_array(self, shape: Sequence[int], dtype: npt.DTypeLike) -> NodeSharedArray:
        """Return an array whose memory all ranks of a node share, so that a node holds large data once. Collective.

        Its first rank writes it, then all call `publish`. `shape` and `dtype` must agree on the ranks of a node.
        Raises LaunchError, on all ranks, where MPI does not connect the ranks or a node lacks the memory.
        """

    def exchange(self, tensor: Array, partner: int) -> Array:
        """Send `tensor` to rank `partner` and return the partner's, of the same shape. Collective over the pair."""

    def broadcast(self, tensor: Array, root: int = 0) -> None:
        """Replace a contiguous `tensor` by rank `root`'s. Collective."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return rank `root`'s picklable `value` on every rank. Collective; other ranks' values are ignored."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the ranks' picklable values in rank order, on every rank. Collective."""

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""

    def make_progress(self) -> None:
        """Let the library progress pending messages. Not collective."""

    def abort(self, exit_code: int) -> None:
        """End every process of the job, at once, from this rank alone. Not collective; does not return."""

    def be_patient(self) -> None:
        """Wait asleep from now on where the ranks meet: they may come at very different times. All ranks or none."""

    def close(self) -> None:
        """Release the group's resources. Collective."""


def row_bytes_of(tensor: Array) -> int:
    """Return the bytes of one row of `tensor` (n, ...), also where n is 0."""
    num_bytes: int = math.prod(tensor.shape[1:]) * tensor.itemsize
    return num_bytes
