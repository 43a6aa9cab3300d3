"""Wrong launches by hand and by the other MPI library's mpirun: each says once what is wrong and how to fix it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import find_mpirun
from refused_launches import MEETING, _no_launcher_variables, assert_refused, start  # noqa: F401  fixtures that pytest finds by name

OPENMPI_PYTHON = "MPITRAIN_OPENMPI_PYTHON"
IN_A_BATCH_JOB = {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "4"}

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
    "a forgotten srun": (IN_A_BATCH_JOB, ("SLURM_NTASKS=4 in Slurm job 42", "put srun before python")),
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


def test_variables_set_by_hand_or_left_over(tmp_path: Path) -> None:
    from mpi4py import MPI

    names = [name for name in BY_HAND if name not in ONLY_MPICH or "MPICH" in MPI.Get_library_version()]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(lambda name: start([], tmp_path / "run", BY_HAND[name][0]), names))
    for name, done in zip(names, outcomes, strict=True):
        assert_refused(done, BY_HAND[name][1], tmp_path / "run")


def test_openmpis_mpirun_with_an_mpich_python(tmp_path: Path) -> None:
    from mpi4py import MPI

    other = os.environ.get(OPENMPI_PYTHON)
    if other is None or "MPICH" not in MPI.Get_library_version():
        pytest.skip(f"needs an MPICH here and {OPENMPI_PYTHON}=/path/to/python of an environment with Open MPI")
    done = start([find_mpirun(other), "-np", "2"], tmp_path / "run", {})
    assert_refused(done, ("PMIx was offered to MPICH", "Open MPI's mpirun started it: use MPICH's"), tmp_path / "run")


def test_mpichs_mpirun_with_an_openmpi_python(tmp_path: Path) -> None:
    """Open MPI does not see MPICH's mpirun: without the check these would be two silent singletons."""
    from mpi4py import MPI

    other = os.environ.get(OPENMPI_PYTHON)
    if other is None or "MPICH" not in MPI.Get_library_version():
        pytest.skip(f"needs an MPICH here and {OPENMPI_PYTHON}=/path/to/python of an environment with Open MPI")
    done = start([find_mpirun(), "-np", "2"], tmp_path / "run", {}, other)
    assert_refused(done, ("each is alone in MPI_COMM_WORLD", "use the mpirun next to that library"), tmp_path / "run")
