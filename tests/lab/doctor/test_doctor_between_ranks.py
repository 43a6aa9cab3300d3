"""What the doctor concludes from the ranks' own words: pure functions, no launch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import launcher_environment

from mpitrain.comm.probes.measurements import probe_all_reduce
from mpitrain.comm.supervision.status_folder import StatusFolder, launch_identity, open_status_folder
from mpitrain.doctor.check_result import CheckResult, exit_code_of, render
from mpitrain.doctor.comparisons import (
    check_oversubscription,
    compare_cores,
    compare_devices,
    compare_fingerprints,
    compare_hosts,
    compare_memory,
    compare_mpi,
    compare_variables,
    compare_versions,
)  # fmt: skip
from mpitrain.doctor.rank_facts import DeviceFacts, RankFacts
from mpitrain.doctor.static_checks import run_limited
from mpitrain.doctor.supervision.arrival import Waiting, explain

VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "mpi4py": "4.1.2", "numpy": "2.4.6"}


def rank_facts(rank: int, **changes: object) -> RankFacts:
    usual = RankFacts(
        rank=rank, host=f"n{rank // 2}", versions=VERSIONS, mpi_library="MPICH 5.0.2", mpi_path="/a/libmpi.so",
        cores=[rank % 2], variables={"OMP_NUM_THREADS": "1"}, memory_bytes=8 << 30,
    )  # fmt: skip
    return replace(usual, **changes)


FOUR = [rank_facts(rank) for rank in range(4)]
BUSY = {"n0": 2, "n1": 1}


def with_third(**changes: object) -> list[RankFacts]:
    return [*FOUR[:2], rank_facts(2, **changes), FOUR[3]]


@pytest.mark.parametrize(
    ("check", "facts", "status", "words"),
    [
        (compare_mpi, with_third(mpi_library="Open MPI 5.0.11"), "fail", "rank 2 on n1 has Open MPI 5.0.11"),
        (compare_mpi, with_third(mpi_path="/b/libmpi.so"), "fail", "/b/libmpi.so"),
        (compare_versions, with_third(versions={**VERSIONS, "torch": "2.6"}), "fail", "torch: rank 2 on n1 has 2.6"),
        (compare_variables, with_third(variables={"OMP_NUM_THREADS": "4"}), "warn", "OMP_NUM_THREADS: rank 2 on n1"),
        (compare_cores, with_third(cores=[1]), "warn", "n1: ranks 2 and 3 are bound to the same core(s) 1"),
        (compare_memory, with_third(memory_bytes=1 << 28), "warn", "0.1 GiB (rank 2 on n1)"),
        (lambda facts: check_oversubscription(facts, 1, BUSY), FOUR, "warn", "n1: 2 ranks with 1 thread(s) each"),
        (lambda facts: compare_fingerprints(facts, ["a", "a", "b", "a"]), FOUR, "fail", "rank 2 on n1 has b"),
        (compare_hosts, with_third(host="n0"), "pass", "n0: 3 rank(s), n1: 1 rank(s)"),
    ],
)  # fmt: skip
def test_a_rank_that_differs_is_named(check, facts, status, words):
    result = check(facts)
    assert (result.status, words in result.found) == (status, True), result
    assert result.fix or status == "pass"


def test_equal_ranks_are_well():
    checks = [compare_mpi, compare_versions, compare_variables, compare_cores, compare_memory, compare_hosts]
    assert {check(FOUR).status for check in checks} == {"pass"}
    assert check_oversubscription(FOUR, 1, {"n0": 2, "n1": 2}).status == "pass"
    # Ranks that may use all cores are spread by the system.
    assert compare_cores([rank_facts(rank, cores=[0, 1]) for rank in range(4)]).status == "pass"


@pytest.mark.parametrize(
    ("uuids", "status", "words"),
    [
        (["A", "B", "C", "D"], "pass", "4 GPUs, one a rank"),
        (["A", "B", "C", "C"], "fail", "n1: ranks 2 and 3 share the GPU C"),
        (["A", "B", None, "D"], "fail", "rank 2 on n1 has no GPU"),
        ([None] * 4, "skip", "no GPU"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(uuids, status, words):
    devices = [DeviceFacts(uuid, "GPU", "MULTIPLE") for uuid in uuids]
    gpu, level = compare_devices(FOUR, devices)
    assert (gpu.status, level.status) == (status, "pass")
    assert words in gpu.found
    weak = [replace(device, thread_level="FUNNELED") for device in devices]
    assert list(compare_devices(FOUR, weak))[1].status == "warn"


WAITING = Waiting(rank=0, world_size=3, is_one_node=True, step=5, title="clocks", limit_s=9)
HERE = {"host": "n0", "pid": 17, "title": "clocks", "step": 5}
LATE = {"host": "n9", "pid": 17, "title": "TCP", "step": 4}


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({0: HERE, 1: HERE}, "no sign of rank 2 of 3"),
        ({0: HERE, 1: HERE, 2: LATE}, "rank 2 on n9 (process 17) did not arrive"),
        ({0: HERE, 1: HERE, 2: HERE}, "all 3 ranks arrived, but the operation did not end on rank 0 on n0"),
        ({0: HERE, 1: {**HERE, "ended": True}, 2: HERE}, "rank 1 on n0 (process 17) ended unexpectedly at 'clocks'"),
        ({0: HERE, 1: {**HERE, "failure": "no MPI\nTo fix it: get one"}}, "rank 1 on n0 could not start: no MPI"),
    ],
)  # fmt: skip
def test_the_missing_rank_is_named(notes, words):
    result = explain(WAITING, notes, Path("/status"))
    assert words in result.found
    assert result.status == "fail"
    assert result.fix


def test_a_stopped_process_is_told_from_a_slow_one():
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        late = {"host": socket.gethostname(), "pid": process.pid, "step": 4, "title": "TCP"}
        result = explain(WAITING, {0: HERE, 1: HERE, 2: late}, Path("/status"))
    finally:
        process.kill()
        process.wait()
    assert "stopped" in result.found
    assert f"kill -CONT {process.pid}" in result.fix


def test_the_status_folder_tells_notes_and_gives_a_claim_once(tmp_path):
    first, second = StatusFolder(tmp_path, 0), StatusFolder(tmp_path, 1)
    first.post(step=1)
    second.post(step=2)
    second.post(step=3)
    assert first.read() == {0: {"step": 1}, 1: {"step": 3}}
    assert (first.claim("reporter"), second.claim("reporter"), second.has("reporter")) == (True, False, True)
    os.utime(tmp_path / "rank-000001.json", (0, 0))
    assert first.read() == {0: {"step": 1}}, "a note of an earlier launch counts"


def test_launches_have_status_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    identities = [{"PMIX_NAMESPACE": "a"}, {"PMIX_NAMESPACE": "b"}, slurm, {**slurm, "SLURM_STEP_ID": "1"}, {}]
    assert len({launch_identity(environ) for environ in identities}) == len(identities)
    ranks = [{**slurm, "SLURM_PROCID": str(rank)} for rank in range(2)]
    assert open_status_folder(ranks[0], 0, True, True).folder == open_status_folder(ranks[1], 1, True, True).folder


def test_exit_code_and_table_tell_the_worst():
    well, broken = CheckResult("a", "pass", "found"), CheckResult("MPI library", "fail", "none", "install one")
    wrong_input = CheckResult("data file", "fail", "none", "give one")
    assert [exit_code_of(results) for results in ([well], [well, wrong_input], [wrong_input, broken])] == [0, 2, 3]
    table = render([well, broken], 2, as_json=False)
    assert "FAIL  MPI library  none\n" in table
    assert "-> install one\n" in table
    assert "1 failure(s), 0 warning(s), 2 checks." in table


def test_a_check_that_hangs_or_breaks_is_a_failure():
    hanging = run_limited("disk", lambda: threading.Event().wait(5) and [], 0.05)
    breaking = run_limited("disk", lambda: {}["key"], 5.0)
    assert ["did not end within 0.05 s" in hanging[0].found, "KeyError" in breaking[0].found] == [True, True]
    assert {hanging[0].status, breaking[0].status} == {"fail"}


def test_a_rank_that_hangs_with_pythons_lock_is_ended_with_the_exit_code_of_a_wrong_launch(tmp_path):
    """As MPI_Init hangs: no thread of that process can run."""
    program = (
        "import ctypes, pathlib, sys\n"
        "from mpitrain.comm.supervision.status_folder import StatusFolder\n"
        "from mpitrain.doctor.supervision.heartbeat import start_heartbeat\n"
        "heartbeat = start_heartbeat(StatusFolder(pathlib.Path(sys.argv[1]), 0), 2, True, 60.0, False)\n"
        "heartbeat.enter('start MPI', 0.5)\n"
        "ctypes.PyDLL(None).sleep(60)\n"
    )
    folder = tmp_path / "status"
    folder.mkdir()
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, env=launcher_environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 3, done.stderr
    assert "no sign of rank 1 of 2" in done.stdout
    assert not folder.exists()


class WrongSum:
    """A communicator of two ranks whose sum misses a rank in one place."""

    rank, size = 0, 2

    def all_reduce(self, tensor: torch.Tensor, operation: str = "sum") -> None:
        if operation == "sum" and tensor.numel() > 17:
            other = tensor + 1
            other[17] = 0
            tensor += other


def test_a_wrong_sum_is_seen():
    assert probe_all_reduce(WrongSum(), torch.device("cpu")).wrong == "element 17 is 18.0 instead of 37.0"
