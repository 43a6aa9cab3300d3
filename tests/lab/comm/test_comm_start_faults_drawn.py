"""Ranks that fail before the ranks have met, in each way, phase and launcher."""

from __future__ import annotations

import os
import random
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import launch
from start_faults import (
    NUM_RANKS,
    Cell,
    cells,
)
from start_problems import problems_of, problems_of_processes

AT_ONCE = 3
# One of each way to fail, of each phase and of each launcher; the others are drawn, or all of them with --full.
ALWAYS = (
    Cell("SIGSTOP", "MPI_Init", "mpirun"),
    Cell("hang with lock", "import torch", "by hand"),
    Cell("SIGKILL", "settings", "by hand"),
    Cell("exception", "import mpi4py", "mpirun"),
    Cell("sys.exit(0)", "meeting", "mpirun"),
)
NUM_DRAWN = 1


def chosen(is_full: bool) -> list[Cell]:
    every = cells()
    return every if is_full else [*ALWAYS, *random.Random(14).sample(every, NUM_DRAWN)]


@pytest.mark.mpi(ranks=NUM_RANKS)
@pytest.mark.slow
def test_a_rank_that_fails_before_the_ranks_have_met(
    small_history: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    todo = chosen(request.config.getoption("--full"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda cell: problems_of(cell, small_history, tmp_path, sys.executable), todo)
    wrong = {str(cell): problems for cell, problems in zip(todo, found, strict=True) if problems}
    assert not wrong, "\n".join(f"{cell}: {problems}" for cell, problems in wrong.items())


def test_under_open_mpi_too(small_history: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None:
        pytest.skip("needs an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    todo = cells(("mpirun",)) if request.config.getoption("--full") else [Cell("SIGSTOP", "settings", "mpirun")]
    for cell in todo:
        assert problems_of(cell, small_history, tmp_path, python) == [], cell


@pytest.mark.parametrize("mpi", ["MPICH", "Open MPI"])
def test_what_one_rank_has_said_no_late_rank_says_again(tmp_path: Path, mpi: str) -> None:
    """Rank 1 comes when rank 0 and all that watched it have ended: on a busy machine that is half a second."""
    python = sys.executable if mpi == "MPICH" else os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None:
        pytest.skip("needs an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    late = tmp_path / "late"
    late.write_text('#!/bin/sh\n[ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 0 ] || sleep 8\nexec "$@"\n')
    late.chmod(0o700)
    mark = uuid.uuid4().hex
    done = launch(
        ["-m", "mpitrain", "--no-such-flag"], 2, environ={"MARK_OF_TEST": mark}, python=python, emulator=[str(late)]
    )
    assert (done.returncode, len(done.our_lines)) == (2, 1), done.stderr
    assert problems_of_processes(mark) == []
