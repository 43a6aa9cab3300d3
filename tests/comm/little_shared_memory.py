"""Run by test_comm_shared_room.py under mpirun, where little memory can be shared and some of it is taken.

Prints a line a rank: what is given holds numbers to its last byte; what is refused, with the reason.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.node_shared import SHARED_MEMORY_FOLDER
from mpitrain.errors import LaunchError

TAKEN_BYTES, MARGIN_BYTES = 8 << 20, 2 << 20


def free_bytes() -> int:
    found = os.statvfs(SHARED_MEMORY_FOLDER)
    return found.f_bavail * found.f_frsize


def say(text: str) -> None:
    # In one piece with its end: where Python does not buffer, `print` writes two, and other ranks between them.
    sys.stdout.write(f"rank {MPI.COMM_WORLD.Get_rank()}: {text}\n")
    sys.stdout.flush()


def main() -> None:
    world = MpiCommunicator(MPI.COMM_WORLD)
    if world.rank == 0:
        Path(SHARED_MEMORY_FOLDER, "taken").write_bytes(bytes(TAKEN_BYTES))
    world.barrier()
    free = world.broadcast_object(free_bytes())
    shared = world.node_shared_array(((free - MARGIN_BYTES) // 8,), np.float64)
    if shared.fills:
        shared.array[...] = 7.0
    shared.publish()
    say(f"given, its last number is {shared.array[-1]:g}")
    world.barrier()
    shared.close()
    try:
        world.node_shared_array(((free + MARGIN_BYTES) // 8,), np.float64)
        say("given")
    except LaunchError as error:
        say(f"refused {(free + MARGIN_BYTES) // 8 * 8 / 1e6:.0f} MB of {free / 1e6:.0f}: {error}")


main()
