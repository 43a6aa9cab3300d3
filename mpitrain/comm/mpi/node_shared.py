"""Memory that all ranks of one node share: large data stands once on a node, whatever the number of its ranks."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpitrain.comm.agreement import together
from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpitrain.comm.mpi.communicator import MpiCommunicator

# Where MPI libraries keep it on Linux. Writing beyond its size is a bus error, so its room is asked for first.
SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108  (a mount, not a place of ours)
_MEGABYTE = 1e6


@dataclass(frozen=True)
class NodeSharedTensor:
    """The same memory on every rank of a node: `if shared.fills: shared.tensor.copy_(...)`, then `shared.publish()`."""

    tensor: torch.Tensor
    local_rank: int
    local_world_size: int
    _window: MPI.Win
    _node: MPI.Comm

    @property
    def fills(self) -> bool:
        """True on the node's first rank, which writes the values."""
        return self.local_rank == 0

    def publish(self) -> None:
        """Let the node's ranks see what its first rank wrote before. Collective over the node."""
        # Sync orders this rank's view of the memory; the barrier orders the ranks.
        self._window.Sync()
        self._node.Barrier()
        self._window.Sync()

    def close(self) -> None:
        """Give the memory back; `tensor` and its views must not be touched afterwards. Collective over the node."""
        self._window.Unlock_all()
        self._window.Free()
        self._node.Free()


def open_node_shared_tensor(
    communicator: MpiCommunicator, shape: Sequence[int], dtype: torch.dtype
) -> NodeSharedTensor:
    """See `Communicator.node_shared_tensor`. Collective."""
    from mpi4py import MPI

    node = communicator.mpi_comm.Split_type(MPI.COMM_TYPE_SHARED)
    num_bytes = math.prod(shape) * dtype.itemsize
    own_bytes = num_bytes if node.Get_rank() == 0 else 0
    together(communicator, lambda: _check_room(own_bytes))
    window = together(communicator, lambda: _allocate(own_bytes, node, MPI))
    window.Lock_all(MPI.MODE_NOCHECK)
    memory, _ = window.Shared_query(0)
    tensor = torch.frombuffer(memory, dtype=dtype) if num_bytes else torch.empty(0, dtype=dtype)
    return NodeSharedTensor(tensor.view(*shape), node.Get_rank(), node.Get_size(), window, node)


def _allocate(num_bytes: int, node: MPI.Comm, mpi: Any) -> MPI.Win:
    try:
        window: MPI.Win = mpi.Win.Allocate_shared(num_bytes, 1, comm=node)
    except mpi.Exception as error:
        raise LaunchError(
            f"{num_bytes / _MEGABYTE:.0f} MB shared by the ranks of {socket.gethostname()}: {error}; "
            "let each rank keep its own copy"
        ) from error
    return window


def _check_room(num_bytes: int) -> None:
    try:
        found = os.statvfs(SHARED_MEMORY_FOLDER)
    except OSError:
        return
    free = found.f_bavail * found.f_frsize
    if num_bytes > free:
        raise LaunchError(
            f"{num_bytes / _MEGABYTE:.0f} MB shared by the ranks of {socket.gethostname()}: {SHARED_MEMORY_FOLDER} has "
            f"{free / _MEGABYTE:.0f} MB left; enlarge it (containers: --shm-size), or let each rank keep its own copy"
        )
