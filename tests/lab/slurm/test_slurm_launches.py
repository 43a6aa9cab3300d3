"""The public command under a real Slurm: the same bits as under mpirun, polite stops, and wrong launches that speak."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
from conftest import TESTS, Finished, find_mpirun, launch, losses_of, train
from slurm_cluster import SlurmCluster, slurm, wait_until

from mpitrain.models.files.torchscript import load_and_run_code

__all__ = ["slurm"]

Outcome = tuple[str, list[tuple[float, float | None]]]

SECONDS_TO_REFUSE = 10.0
LAUNCH_TIMEOUT_S = 150.0
COMMAND = (sys.executable, "-m", "mpitrain", "train")
TWO_AND_TWO = ("-N2", "--ntasks-per-node=2")
THREE_AND_ONE = ("-N2", "-n4")


@pytest.fixture(autouse=True)
def _no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if re.match(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI|SLURM|MPI_LOCAL", name)]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tiny(small_history: Path) -> list[str]:
    return ["training.epochs=2", "training.global_batch_size=128", "seed=5", f"data.data_path={small_history}"]


@pytest.fixture(scope="session")
def expected(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What `mpirun -np 4` trains to."""
    folder = tmp_path_factory.mktemp("mpirun") / "run"
    done = train(4, folder, *tiny, timeout_s=LAUNCH_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return outcome_of(folder)


def outcome_of(folder: Path) -> Outcome:
    """The SHA-256 of the weights in model.pt, and every epoch's losses."""
    # Not of the file: TorchScript lists a layer's constants in an order that changes with Python's hash seed.
    weights = load_and_run_code(folder / "model.pt").state_dict()
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    assert weights
    return digest.hexdigest(), losses_of(folder)


def endless(folder: Path, small_history: Path) -> list[str]:
    return [f"output.model_dir={folder}", f"data.data_path={small_history}", "training.epochs=1000000"]


def write_script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    return path


def our_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("mpitrain: ")]


@pytest.mark.parametrize(
    ("mpi", "layout", "tasks_per_node", "said"),
    [
        ("pmi2", TWO_AND_TWO, "2(x2)", "4 ranks on 2 nodes, backend mpi"),
        ("pmi2", THREE_AND_ONE, "3,1", "4 ranks on 2 nodes, backend mpi"),
        ("none", TWO_AND_TWO, "2(x2)", "4 ranks, backend gloo"),
        ("none", THREE_AND_ONE, "3,1", "4 ranks, backend gloo"),
    ],
)
def test_srun_trains_to_the_same_bits_as_mpirun(
    slurm: SlurmCluster, tiny: list[str], expected: Outcome, tmp_path: Path,
    mpi: str, layout: tuple[str, ...], tasks_per_node: str, said: str,
) -> None:  # fmt: skip
    shown = slurm.srun(f"--mpi={mpi}", *layout, "printenv", "SLURM_STEP_TASKS_PER_NODE")
    assert shown.stdout.split() == [tasks_per_node] * 4, shown.stderr
    words = (f"--mpi={mpi}", *layout, *COMMAND, f"output.model_dir={tmp_path / 'run'}", *tiny)
    done = slurm.srun(*words, timeout_s=LAUNCH_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert outcome_of(tmp_path / "run") == expected


@pytest.mark.parametrize("layout", [TWO_AND_TWO, THREE_AND_ONE])
def test_an_epoch_is_one_call_on_two_nodes(slurm: SlurmCluster, tmp_path: Path, layout: tuple[str, ...]) -> None:
    program, alone = str(TESTS / "lab" / "train" / "nodes_sum_program.py"), tmp_path / "alone"
    alone.mkdir()
    done = launch([program, str(alone)])
    assert done.returncode == 0, done.stderr
    words = ("--mpi=pmi2", *layout, sys.executable, program, str(tmp_path))
    done = slurm.srun(*words, timeout_s=LAUNCH_TIMEOUT_S, environ={"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"})
    assert done.returncode == 0, done.stderr
    facts, (expected,) = (json.loads((folder / "facts.json").read_text())["fixed"] for folder in (tmp_path, alone))
    assert [(seen["exchanges"], seen["nodes"], seen["calls"]) for seen in facts] == [(True, 2, 3)] * 4
    assert [(seen["weights"], seen["losses"]) for seen in facts] == [(expected["weights"], expected["losses"])] * 4


def test_collectives_are_measured_between_two_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Here MPICH sends over TCP, and only while it is called: rank 0 must not wait for others outside of it."""
    words = (
        "bench",
        "collectives",
        "--collectives",
        "exchange",
        "--max-bytes",
        "64",
        "--rounds",
        "1",
        "--json",
        "f.json",
    )
    done = slurm.srun("--mpi=pmi2", "-N2", "-n2", sys.executable, "-m", "mpitrain", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "f.json").read_text())
    assert (record["num_ranks"], record["num_nodes"]) == (2, 2)
    assert {result["transport"] for result in record["results"]} == {"mpi4py", "mpi", "gloo"}


def test_rank_0_on_the_second_node_is_found(
    slurm: SlurmCluster, tiny: list[str], expected: Outcome, tmp_path: Path
) -> None:
    """An arbitrary distribution: Slurm's variables list n1 first, and rank 0 is on n2."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n2\nn1\nn1\nn1\n")
    words = ("--mpi=none", "-n4", "--distribution=arbitrary", *COMMAND, f"output.model_dir={tmp_path / 'run'}", *tiny)
    done = slurm.srun(*words, timeout_s=LAUNCH_TIMEOUT_S, environ={"SLURM_HOSTFILE": str(hosts)})
    assert done.returncode == 0, done.stderr
    assert outcome_of(tmp_path / "run") == expected


def test_mpirun_inside_a_batch_job(slurm: SlurmCluster, tiny: list[str], expected: Outcome, tmp_path: Path) -> None:
    command = [find_mpirun(), "-np", "4", *COMMAND, f"output.model_dir={tmp_path / 'run'}", *tiny]
    script = write_script(tmp_path / "job.sh", "exec " + " ".join(command))
    job = slurm.submit(script, "-N1", "-n4", f"--output={tmp_path / 'log'}", cwd=tmp_path)
    assert slurm.wait_for_end(job, LAUNCH_TIMEOUT_S)["ExitCode"] == "0:0", (tmp_path / "log").read_text()
    assert outcome_of(tmp_path / "run") == expected


# How it is launched, and the words of its fix.
REFUSED = {
    "MPICH under PMIx": (["--mpi=pmix"], [], "srun --mpi=pmi2 -n 2 python -m mpitrain"),
    "reference without MPI": (
        ["--mpi=none"],
        ["semantics=reference", "training.dtype=float32"],
        "semantics=reference needs MPI between the ranks; start with mpirun or srun --mpi=pmi2",
    ),
}


@pytest.mark.parametrize(("options", "settings", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_sruns_say_their_fix(
    slurm: SlurmCluster, small_history: Path, tmp_path: Path, options: list[str], settings: list[str], words: str
) -> None:
    if "--mpi=pmix" in options:
        skip_unless_mpich_without_pmix()
    given = [*COMMAND, f"output.model_dir={tmp_path / 'run'}", f"data.data_path={small_history}", *settings]
    done = slurm.srun(*options, "-N1", "-n2", *given, timeout_s=LAUNCH_TIMEOUT_S)
    assert_refused(done, words)
    assert not (tmp_path / "run").exists()


def assert_refused(done: Finished, words: str) -> None:
    assert done.returncode == 3, done.stderr
    (line,) = done.our_lines
    assert words in line
    assert "Traceback" not in done.stderr


def skip_unless_mpich_without_pmix() -> None:
    from mpi4py import MPI

    library = MPI.Get_library_version()
    if "MPICH" not in library or "pmix" in library:
        pytest.skip("this Python loads another MPI library than an MPICH without PMIx")


def test_a_forgotten_srun_is_said(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path / "job.sh", " ".join([*COMMAND, f"output.model_dir={tmp_path / 'run'}"]))
    job = slurm.submit(script, "-N2", "-n4", f"--output={tmp_path / 'log'}", cwd=tmp_path)
    assert slurm.wait_for_end(job)["ExitCode"] == "3:0"
    (line,) = our_lines((tmp_path / "log").read_text())
    assert "put srun before python: `srun --mpi=" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("stop", "reason"), [("scancel", "SIGTERM"), ("time limit", "SIGUSR1")])
def test_a_stop_by_slurm_leaves_a_checkpoint_and_exit_code_5(
    slurm: SlurmCluster, small_history: Path, tmp_path: Path, stop: str, reason: str, request: pytest.FixtureRequest
) -> None:
    if stop == "time limit" and not request.config.getoption("--full"):
        pytest.skip("waits for Slurm's own clock; the submitted job's warning is the same signal; --full")
    run, log = tmp_path / "run", tmp_path / "log"
    command = ["srun", "--mpi=pmi2", *COMMAND, *endless(run, small_history)]
    script = write_script(tmp_path / "job.sh", " ".join(command))
    # Slurm looks at time limits every 30 s: this warning comes 30 to 60 s after the start.
    limit = ["--time=2", "--signal=USR1@60"] if stop == "time limit" else ["--time=3"]
    job = slurm.submit(script, "-N2", "-n2", *limit, f"--output={log}", cwd=tmp_path)
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text() != "", 100.0, "an epoch"
    )
    if stop == "scancel":
        assert slurm.run(["scancel", "--signal=TERM", str(job)]).returncode == 0
    ended = slurm.wait_for_end(job, 120.0)
    assert ended["ExitCode"] == "5:0", log.read_text()
    assert [line for line in our_lines(log.read_text()) if f"stopped by {reason} at step" in line]
    assert list((run / "checkpoints").glob("step-*/commit.json"))


def test_scancel_leaves_a_checkpoint(slurm: SlurmCluster, small_history: Path, tmp_path: Path) -> None:
    """Without a signal's name Slurm ends all: SIGTERM to the ranks, and SIGKILL half a minute later."""
    run, log = tmp_path / "run", tmp_path / "log"
    command = ["srun", "--mpi=pmi2", *COMMAND, *endless(run, small_history)]
    script = write_script(tmp_path / "job.sh", " ".join(command))
    job = slurm.submit(script, "-N2", "-n2", "--time=3", f"--output={log}", cwd=tmp_path)
    wait_until(
        lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text() != "", 100.0, "an epoch"
    )
    assert slurm.run(["scancel", str(job)]).returncode == 0
    assert slurm.wait_for_end(job)["JobState"] == "CANCELLED"
    committed = lambda: list((run / "checkpoints").glob("step-*/commit.json"))  # noqa: E731
    wait_until(lambda: bool(committed()), 30.0, f"a checkpoint: {log.read_text()}")
