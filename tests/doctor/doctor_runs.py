"""Calls of `mpitrain doctor`, and what they found."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Finished, launch

LAUNCHER_VARIABLES = re.compile(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI_COMM|SLURM|MPI_LOCAL")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An activated environment, no outer launch's variables, and status folders that can be looked for."""
    for name in [name for name in os.environ if LAUNCHER_VARIABLES.match(name)]:
        monkeypatch.delenv(name)
    # Whatever MPI the system has comes after the environment's own: the wrong mpirun first is a fault of its own.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders))


@pytest.fixture(params=["own MPI", "another MPI's mpirun after the own"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the system has on the PATH after the environment: nothing that matters, or an MPI like Debian's."""
    if request.param != "own MPI":
        folder = write_other_mpi(tmp_path / "usr_bin")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{folder}:{os.environ['PATH']}")


@functools.cache
def loads_open_mpi() -> bool:
    return "Open MPI" in json.loads(launch(["-m", "mpitrain.comm.mpi.library"]).stdout)["version"]


def write_other_mpi(folder: Path, says: str | None = None) -> Path:
    """Write stand-ins for the programs of an MPI that Python does not load; its mpirun `says` which one it is."""
    says = says or ("HYDRA build details:" if loads_open_mpi() else "mpirun (Open MPI) 4.1.4")
    folder.mkdir()
    for name in ("mpirun", "mpiexec", "mpicxx"):
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)
    return folder


def doctor(*arguments: str, num_ranks: int | None = None, **options: object) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the doctor; return its exit code and its results by name."""
    done = launch(["-m", "mpitrain", "doctor", "--json", *arguments], num_ranks, **options)  # type: ignore[arg-type]
    return done.returncode, results_of(done)


def results_of(done: Finished | subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    begin = done.stdout.find("{\n")
    assert begin >= 0, done.stdout + done.stderr
    record, end = json.JSONDecoder().raw_decode(done.stdout[begin:])
    assert "mpitrain doctor" not in done.stdout
    assert done.stdout[begin + end :].find("{\n") < 0, "more than one rank printed"
    return {result["name"]: result for result in record["results"]}


def assert_found(results: dict[str, dict[str, str]], name: str, status: str, found: str, fix: str) -> None:
    result = results[name]
    assert result["status"] == status, result
    assert re.search(found, result["found"]), result
    assert re.search(fix, result["fix"]), result


def no_status_folder_left(tmp_path: Path) -> bool:
    return not list((tmp_path / "folders").glob("*mpitrain-doctor*"))
