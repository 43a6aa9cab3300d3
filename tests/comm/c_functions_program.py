"""Run by test_comm_c_functions.py on two ranks: `python c_functions_program.py RESULTS`.

Exchanges bytes by MPI's C functions, called by their addresses, while another message with the same tag is on its way.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from unittest import mock

from mpi4py import MPI

from mpitrain.comm.mpi import c_functions
from mpitrain.comm.mpi.c_functions import failure_of, find_c_functions, open_c_communicator

NUM_BYTES = 40_000
POINTER, INT = ctypes.c_void_p, ctypes.c_int


def exchange(functions, handle, own, partner):
    """Give `own` to the partner and return its bytes, and how often the messages were looked at."""
    handle_type = ctypes.c_int if functions.handle_bytes == 4 else ctypes.c_void_p
    start_type = ctypes.CFUNCTYPE(INT, POINTER, INT, handle_type, INT, INT, handle_type, POINTER)
    test_type = ctypes.CFUNCTYPE(INT, INT, POINTER, ctypes.POINTER(INT), POINTER)
    requests = (ctypes.c_char * (2 * functions.handle_bytes))()
    statuses = (ctypes.c_char * (2 * functions.status_bytes))()
    received = ctypes.create_string_buffer(len(own))
    for number, (start, buffer) in enumerate(((functions.irecv, received), (functions.isend, own))):
        place = ctypes.addressof(requests) + number * functions.handle_bytes
        words = (ctypes.cast(buffer, POINTER), len(own), functions.byte_type, partner, 0, handle, place)
        assert start_type(start)(*words) == 0
    done = INT()
    while not done.value:
        assert test_type(functions.testall)(2, requests, ctypes.byref(done), statuses) == 0
    return received.raw


def main():
    world = MPI.COMM_WORLD
    functions = find_c_functions()
    # Rank 1 is number 0: the order is that of the numbers.
    communicator = open_c_communicator(world, 1 - world.rank)
    outside = open_c_communicator(world, 0 if world.rank == 0 else None)
    theirs = bytearray(NUM_BYTES)
    other = world.Irecv([theirs, MPI.BYTE], 1 - world.rank, 0)
    received = exchange(functions, communicator.handle, bytes([world.rank + 1]) * NUM_BYTES, world.rank)
    world.Send([bytes([world.rank + 7]) * NUM_BYTES, MPI.BYTE], 1 - world.rank, 0)
    other.Wait()
    with (
        mock.patch.object(c_functions, "mapped_library_path", return_value=""),
        mock.patch.object(MPI, "__file__", "libm.so.6"),
    ):
        without = find_c_functions()
    with mock.patch.object(MPI, "Get_library_version", return_value="another one"):
        other_library = find_c_functions()
    facts = {
        "handle_bytes": functions.handle_bytes,
        "status_bytes": functions.status_bytes,
        "received": sorted(set(received)),
        "beside": sorted(set(theirs)),
        "outside": outside.handle == 0,
        "not found": [without, other_library],
        "failure": [
            type(failure_of(MPI.ERR_TRUNCATE)).__name__,
            failure_of(MPI.ERR_TRUNCATE).Get_error_class() == MPI.ERR_TRUNCATE,
        ],
    }
    outside.close()
    communicator.close()
    (Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(facts))


main()
