"""What the doctor concludes from the ranks' own words: pure functions, no launch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from conftest import TIMEOUT_S, launcher_environment

from mpitrain.comm.agent.folder import launch_identity
from mpitrain.comm.probes.measurements import probe_all_reduce
from mpitrain.doctor import machine
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
from mpitrain.doctor.late_ranks import explain
from mpitrain.doctor.rank_facts import DeviceFacts, RankFacts
from mpitrain.doctor.run import run_limited

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


HERE = {"rank": 0, "host": "n0", "pid": 17, "title": "clocks", "step": 5, "limit_s": 9.0}
NEXT = {**HERE, "rank": 1}
THIRD = {**HERE, "rank": 2}
LATE = {**HERE, "rank": 2, "host": "n9", "title": "TCP", "step": 4}


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({0: HERE, 1: NEXT}, "no sign of rank 2 of 3"),
        ({0: HERE, 1: NEXT, 2: LATE}, "rank 2 on n9 (process 17) did not arrive"),
        ({0: HERE, 1: NEXT, 2: THIRD}, "all 3 ranks arrived, but the operation did not end on rank 0 on n0"),
        ({0: HERE, 1: {**NEXT, "ended": True}, 2: HERE}, "rank 1 on n0 (process 17) ended unexpectedly at 'clocks'"),
        ({0: HERE, 1: {**NEXT, "failure": "no MPI\nTo fix it: get one"}},
         "rank 1 on n0 (process 17) could not start: no MPI"),
    ],
)  # fmt: skip
def test_the_missing_rank_is_named(notes, words):
    result = explain(HERE, notes, 3, is_one_node=True)
    assert words in result.found
    assert result.status == "fail"
    assert result.fix


@pytest.mark.lab
def test_a_stopped_process_is_told_from_a_slow_one():
    process = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        late = {**LATE, "host": socket.gethostname(), "pid": process.pid}
        result = explain(HERE, {0: HERE, 1: NEXT, 2: late}, 3, is_one_node=True)
    finally:
        process.kill()
        process.wait()
    assert "stopped" in result.found
    assert f"kill -CONT {process.pid}" in result.fix


def test_launches_have_identities_of_their_own():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    identities = [{"PMIX_NAMESPACE": "a"}, {"PMIX_NAMESPACE": "b"}, slurm, {**slurm, "SLURM_STEP_ID": "1"}, {}]
    assert len({launch_identity(environ) for environ in identities}) == len(identities)
    assert len({launch_identity({**slurm, "SLURM_PROCID": str(rank)}) for rank in range(2)}) == 1


def test_exit_code_and_table_tell_the_worst():
    well, broken = CheckResult("a", "pass", "found"), CheckResult("MPI library", "fail", "none", "install one")
    wrong_input = CheckResult("data file", "fail", "none", "give one")
    assert [exit_code_of(results) for results in ([well], [well, wrong_input], [wrong_input, broken])] == [0, 2, 3]
    table = render([well, broken], 2, as_json=False)
    assert "FAIL  MPI library  none\n" in table
    assert "-> install one\n" in table
    assert "1 failure(s), 0 warning(s), 2 checks." in table


@pytest.mark.parametrize(
    ("of_machine", "of_job", "status", "found"),
    [(64 << 30, 1 << 29, "warn", "0.5 GiB free"), (1 << 29, 64 << 30, "warn", "0.5 GiB free"),
     (None, 4 << 30, "pass", "4.0 GiB free"), (None, None, "skip", "the system does not report its free memory")],
)  # fmt: skip
def test_free_memory_is_what_both_the_machine_and_the_job_have(monkeypatch, of_machine, of_job, status, found):
    monkeypatch.setattr(machine, "_meminfo_available", lambda: of_machine)
    monkeypatch.setattr(machine, "_cgroup_free", lambda: of_job)
    result = machine.check_memory()
    assert (result.status, result.found) == (status, found)


@pytest.mark.parametrize(
    ("own", "names"),
    [("0::/slurm/job_7/step_0", ("memory.max", "memory.current")),
     ("4:memory:/slurm/job_7", ("memory.limit_in_bytes", "memory.usage_in_bytes"))],
)  # fmt: skip
def test_a_jobs_memory_is_that_of_its_group_and_of_those_above(tmp_path, monkeypatch, own, names):
    root = tmp_path / ("memory" if "memory" in own else "")
    (root / "slurm" / "job_7" / "step_0").mkdir(parents=True)
    for folder, texts in (
        ("slurm/job_7/step_0", ("max", "5")),
        ("slurm/job_7", ("100", "40")),
        ("slurm", ("900", "50")),
    ):
        for name, text in zip(names, texts, strict=True):
            (root / folder / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n1:cpu:/other\n")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    assert machine._cgroup_free() == 60


@pytest.mark.lab
def test_a_check_that_hangs_or_breaks_is_a_failure():
    hanging = run_limited("disk", lambda: threading.Event().wait(5) and [], 0.05)
    breaking = run_limited("disk", lambda: {}["key"], 5.0)
    assert ["did not end within 0.05 s" in hanging[0].found, "KeyError" in breaking[0].found] == [True, True]
    assert {hanging[0].status, breaking[0].status} == {"fail"}


@pytest.mark.lab
def test_a_rank_that_hangs_with_pythons_lock_is_ended_with_the_exit_code_of_a_wrong_launch(tmp_path):
    """As MPI_Init hangs: no thread of that process can run."""
    program = (
        "import ctypes, os\n"
        "from mpitrain.cluster.place import Place\n"
        "from mpitrain.doctor.steps import DoctorRequest\n"
        "from mpitrain.doctor.steps import open_steps\n"
        "steps = open_steps(Place(0, 2, False, True), DoctorRequest(), os.environ)\n"
        "steps.enter('start MPI', 0.5)\n"
        "ctypes.PyDLL(None).sleep(3600)\n"
    )
    command = [sys.executable, "-c", program]
    environ = {**launcher_environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 3, done.stderr
    assert "no sign of rank 1 of 2" in done.stdout
    assert list(tmp_path.iterdir()) == []


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
