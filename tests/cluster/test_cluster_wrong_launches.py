"""Wrong launches, as users make them: each says once what is wrong and how to fix it, with exit code 3, at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, Finished, find_mpirun, launcher_environment

SECONDS_TO_REFUSE = 10.0
OPENMPI_PYTHON = "MPITRAIN_OPENMPI_PYTHON"
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

# One process started by hand: the variables it sees, and the words that name the fault and its fix.
BY_HAND: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "RANK without WORLD_SIZE": ({"RANK": "0"}, ("RANK=0 without WORLD_SIZE", "unset RANK")),
    "WORLD_SIZE without RANK": ({"WORLD_SIZE": "4"}, ("WORLD_SIZE=4 without RANK", "unset WORLD_SIZE")),
    "RANK as large as WORLD_SIZE": (
        {"RANK": "4", "WORLD_SIZE": "4", **MEETING}, ("RANK=4 with WORLD_SIZE=4", "allowed are 0 to 3"),
    ),
    "RANK that is no number": (
        {"RANK": "first", "WORLD_SIZE": "4", **MEETING}, ("RANK=first: not a whole number", "torchrun"),
    ),
    "negative RANK": ({"RANK": "-1", "WORLD_SIZE": "4", **MEETING}, ("RANK=-1: not a whole number", "unset RANK")),
    "WORLD_SIZE of 0": ({"RANK": "0", "WORLD_SIZE": "0", **MEETING}, ("WORLD_SIZE=0: at least 1", "unset WORLD_SIZE")),
    "no MASTER_PORT": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, ("without MASTER_PORT", "set MASTER_ADDR"),
    ),
    "no MASTER_ADDR": (
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}, ("without MASTER_ADDR", "set MASTER_ADDR"),
    ),
    "MASTER_PORT that is no port": (
        {"RANK": "0", "WORLD_SIZE": "2", **MEETING, "MASTER_PORT": "70000"}, ("MASTER_PORT=70000: not a port", "free"),
    ),
    "half of Open MPI's variables": (
        {"OMPI_COMM_WORLD_RANK": "0"}, ("OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE", "unset"),
    ),
    "MPICH under PMIx": (
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.42.0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        ("PMIx was offered to MPICH", "srun --mpi=pmi2 -n 2"),
    ),
    "more ranks than MPI sees": (
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "PMI_RANK": "0",
         "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"},
        ("several ranks were started, but each is alone", "To fix it: "),
    ),
}  # fmt: skip
ONLY_MPICH = ("MPICH under PMIx",)


@pytest.fixture(autouse=True)
def _no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if re.match(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI|SLURM|PBS|MPI_LOCAL", name)
    ]:
        monkeypatch.delenv(name)


def start(prefix: list[str], folder: Path, environ: dict[str, str], python: str = sys.executable) -> Finished:
    command = [*prefix, python, "-m", "mpitrain", "train", f"output.model_dir={folder}"]
    done = subprocess.run(
        command, env={**launcher_environment(), **environ}, capture_output=True, text=True, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def assert_refused(done: Finished, words: tuple[str, ...], folder: Path) -> None:
    assert done.returncode == 3, done.stderr
    assert len(done.our_lines) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists(), "it began to train"


@pytest.mark.lab
def test_variables_set_by_hand_or_left_over(tmp_path: Path) -> None:
    from mpi4py import MPI

    names = [name for name in BY_HAND if name not in ONLY_MPICH or "MPICH" in MPI.Get_library_version()]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(lambda name: start([], tmp_path / "run", BY_HAND[name][0]), names))
    for name, done in zip(names, outcomes, strict=True):
        assert_refused(done, BY_HAND[name][1], tmp_path / "run")


@pytest.mark.lab
def test_openmpis_mpirun_with_an_mpich_python(tmp_path: Path) -> None:
    from mpi4py import MPI

    other = os.environ.get(OPENMPI_PYTHON)
    if other is None or "MPICH" not in MPI.Get_library_version():
        pytest.skip(f"needs an MPICH here and {OPENMPI_PYTHON}=/path/to/python of an environment with Open MPI")
    done = start([find_mpirun(other), "-np", "2"], tmp_path / "run", {})
    assert_refused(
        done, ("PMIx was offered to MPICH", "Open MPI's mpirun started this process: use MPICH's"), tmp_path / "run"
    )


@pytest.mark.lab
def test_mpichs_mpirun_with_an_openmpi_python(tmp_path: Path) -> None:
    """Open MPI does not see MPICH's mpirun: without the check these would be two silent singletons."""
    from mpi4py import MPI

    other = os.environ.get(OPENMPI_PYTHON)
    if other is None or "MPICH" not in MPI.Get_library_version():
        pytest.skip(f"needs an MPICH here and {OPENMPI_PYTHON}=/path/to/python of an environment with Open MPI")
    done = start([find_mpirun(), "-np", "2"], tmp_path / "run", {}, other)
    assert_refused(done, ("each is alone in MPI_COMM_WORLD", "use the mpirun next to that library"), tmp_path / "run")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4", **MEETING}, ("ranks is 2 (MPI) and 4 (RANK and", "unset RANK")),
        ({"RANK": "7", "WORLD_SIZE": "2", **MEETING}, ("RANK=7 with WORLD_SIZE=2: allowed are 0 to 1", "unset RANK")),
        ({"RANK": "1", "WORLD_SIZE": "2", **MEETING}, ("this process is rank 0 (MPI) and 1", "unset")),
    ],
    ids=["other size", "impossible rank", "other rank"],
)  # fmt: skip
def test_mpi_and_variables_that_contradict_it(tmp_path: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    done = start([find_mpirun(), "-np", "2"], tmp_path / "run", environ)
    assert_refused(done, words, tmp_path / "run")
