"""Ranks that outnumber their cores wait asleep, so that the one they wait for has a core to itself."""

import json

import pytest
from conftest import launch

NUM_RANKS = 4
WAIT_S = 0.6

PROGRAM = f"""
import json, sys, time
from mpi4py import MPI
from mpitrain.comm.mpi.communicator import MpiCommunicator

communicator = MpiCommunicator(MPI.COMM_WORLD)
seen = {{}}
for is_patient in (False, True):
    communicator.is_patient = is_patient
    for verb in ("barrier", "broadcast_object", "all_gather_object"):
        communicator.barrier()
        if communicator.rank == 0:
            time.sleep({WAIT_S})
        arguments = () if verb == "barrier" else (communicator.rank + 10,)
        begun_s, before_s = time.perf_counter(), time.process_time()
        result = getattr(communicator, verb)(*arguments)
        share = (time.process_time() - before_s) / (time.perf_counter() - begun_s)
        seen[f"{{verb}} {{is_patient}}"] = (share, result)
seen = MPI.COMM_WORLD.allgather(seen)
if communicator.rank == 0:
    print(json.dumps(seen))
communicator.close()
"""


@pytest.fixture(scope="module")
def seen():
    done = launch(["-c", PROGRAM], NUM_RANKS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_waiting_takes_no_core(seen):
    for rank in seen[1:]:
        for verb in ("barrier", "broadcast_object", "all_gather_object"):
            assert rank[f"{verb} True"][0] < 0.2, seen


def test_the_answers_are_those_of_ranks_that_wait_busily(seen):
    answers = {"barrier": None, "broadcast_object": 10, "all_gather_object": [10, 11, 12, 13]}
    for rank in seen:
        for verb, answer in answers.items():
            assert rank[f"{verb} False"][1] == rank[f"{verb} True"][1] == answer
