"""Memory that all ranks of a node share, so that a node stores large data once."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm.agreement import on_all_ranks
from mpitrain.comm.communicator import Communicator, NodeSharedArray
from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

# Location of MPI's shared memory on Linux. Writing beyond its size is a bus error, so check the free space first.
SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108  (a mount; this package creates no file there itself)
_MEGABYTE = 1e6


def open_node_shared_array(
    communicator: Communicator, node: Any, shape: Sequence[int], dtype: npt.DTypeLike
) -> NodeSharedArray:
    """See `Communicator.node_shared_array`; `node` is the MPI communicator of this node's ranks. Collective."""
    from mpi4py import MPI

    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    own_bytes = num_bytes if node.Get_rank() == 0 else 0
    on_all_ranks(communicator, lambda: _check_room(own_bytes))
    window = on_all_ranks(communicator, lambda: _allocate(own_bytes, node, MPI))
    window.Lock_all(MPI.MODE_NOCHECK)
    memory: Any = window.Shared_query(0)[0]
    array = np.frombuffer(memory, dtype=dtype) if num_bytes else np.empty(0, dtype=dtype)
    return NodeSharedArray(array.reshape(shape), node.Get_rank(), node.Get_size(), window, node)


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
