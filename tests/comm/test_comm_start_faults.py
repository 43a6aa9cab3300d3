"""A rank that fails before the ranks have met keeps nobody waiting: all end in time, nothing is left, it is named."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launch, launcher_environment
from start_faults import (
    Cell,
    Ended,
    cells,
    expected_code,
    expected_words,
    is_named_by_launcher,
    run_cell,
)

from mpitrain.comm.agent import rank_side
from mpitrain.comm.agent.arrival import start_limit_s
from mpitrain.comm.agent.folder import SPOKEN
from mpitrain.comm.agent.shared_memory import shared_memory_of
from mpitrain.comm.agent.words import IMPORTING, Start, describe_end, describe_lost
from mpitrain.errors import LaunchError

AT_ONCE = 3
START_LIMIT_S = 30.0
# One of each way to fail, of each phase and of each launcher; the others are drawn, or all of them with --full.
ALWAYS = (
    Cell("SIGSTOP", "MPI_Init", "mpirun"),
    Cell("hang with lock", "import torch", "by hand"),
    Cell("SIGKILL", "settings", "by hand"),
    Cell("exception", "import mpi4py", "mpirun"),
    Cell("sys.exit(0)", "meeting", "mpirun"),
    Cell("hang", "transport", "by hand"),
)
NUM_DRAWN = 1


def chosen(is_full: bool) -> list[Cell]:
    every = cells()
    return every if is_full else [*ALWAYS, *random.Random(14).sample(every, NUM_DRAWN)]


def processes_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes() and b") Z " not in (path / "stat").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def problems_of(cell: Cell, history: Path, folder: Path, python: str, limit_s: float) -> list[str]:
    """Run a cell; return everything in which it ended otherwise than it must."""
    mark = uuid.uuid4().hex
    arguments = ["train", f"data.data_path={history}", f"output.model_dir={folder / mark}", "training.epochs=1"]
    environ = {**launcher_environment(), "MARK_OF_TEST": mark}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_cell, cell, arguments, environ, python, find_mpirun(python), limit_s)
        memory: set[str] = set()
        while not running.done():
            memory |= {name for pid in processes_with(mark) for name in shared_memory_of(pid)}
            time.sleep(0.05)
    try:
        ended = running.result()
    except subprocess.TimeoutExpired:
        return ["did not end"]
    return [*problems_of_output(cell, ended), *problems_of_processes(mark), *problems_of_memory(memory)]


def problems_of_output(cell: Cell, ended: Ended) -> list[str]:
    problems = []
    if not is_named_by_launcher(cell) and not (
        len(ended.our_lines) == 1 and re.search(expected_words(cell), ended.our_lines[0])
    ):
        problems.append(f"said {ended.our_lines or ended.stderr[-2000:]}, not {expected_words(cell)}")
    if "by hand" in cell.launcher and ended.codes[0] != expected_code(cell, ended.codes[1]):
        problems.append(f"exit codes {ended.codes}")
    return problems + (["ended well"] if ended.codes[0] == 0 else [])


def problems_of_processes(mark: str) -> list[str]:
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := processes_with(mark):
        if time.monotonic() > deadline_s:
            return [f"left behind: {[Path(f'/proc/{pid}/cmdline').read_bytes()[-90:] for pid in left]}"]
        time.sleep(0.05)
    return []


def problems_of_memory(names: set[str]) -> list[str]:
    left = [str(path) for name in names for path in Path("/dev/shm").glob(f"{name}*")]
    return [f"left in memory: {left}"] if left else []


def test_a_rank_that_never_comes_is_named_and_all_end(small_history: Path, tmp_path: Path) -> None:
    cell = Cell("hang", "before", "mpirun")
    assert problems_of(cell, small_history, tmp_path, sys.executable, START_LIMIT_S) == []


@pytest.mark.lab
@pytest.mark.slow
def test_a_rank_that_fails_before_the_ranks_have_met(
    small_history: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    todo = chosen(request.config.getoption("--full"))
    limit_s = START_LIMIT_S
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda cell: problems_of(cell, small_history, tmp_path, sys.executable, limit_s), todo)
    wrong = {str(cell): problems for cell, problems in zip(todo, found, strict=True) if problems}
    assert not wrong, "\n".join(f"{cell}: {problems}" for cell, problems in wrong.items())


@pytest.mark.lab
def test_under_open_mpi_too(small_history: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None:
        pytest.skip("needs an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    todo = cells(("mpirun",)) if request.config.getoption("--full") else [Cell("SIGSTOP", "settings", "mpirun")]
    for cell in todo:
        assert problems_of(cell, small_history, tmp_path, python, START_LIMIT_S) == [], cell


@pytest.mark.lab
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


def test_the_limit_is_a_variable_and_by_default_longer_on_several_nodes() -> None:
    assert (start_limit_s({}, True), start_limit_s({}, False)) == (60.0, 300.0)
    assert start_limit_s({"MPITRAIN_START_TIMEOUT_S": "2.5"}, True) == 2.5
    for text in ("0", "-1", "soon", "nan", "inf"):
        with pytest.raises(LaunchError, match=f"MPITRAIN_START_TIMEOUT_S={text}: give seconds"):
            start_limit_s({"MPITRAIN_START_TIMEOUT_S": text}, True)


@pytest.mark.lab
def test_a_wrong_limit_is_one_line(tmp_path: Path) -> None:
    done = launch(["-m", "mpitrain", "--output", str(tmp_path / "run")], environ={"MPITRAIN_START_TIMEOUT_S": "soon"})
    assert (done.returncode, len(done.our_lines)) == (3, 1), done.stderr


def note(rank: int, stage: int, waits: bool, **more: object) -> dict[str, object]:
    return {
        "rank": rank,
        "host": f"n{rank}",
        "pid": 10 + rank,
        "state": "starting",
        "stage": stage,
        "waits": waits,
        **more,
    }


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([note(0, 2, True), note(1, 0, False)],
         "rank 1 on n1 (process 11) is still loading its packages; see what blocks it"),
        ([note(0, 3, True, where="n0:29500")], "no sign of rank 1 of 2, expected at n0:29500; see whether it was"),
        ([note(0, 4, True, count=5), note(1, 4, False, count=4, place="read (x.py:3)")],
         "rank 1 on n1 (process 11) is still agreeing on the start in read (x.py:3)"),
        ([note(0, 4, True, count=5), note(1, 4, True, count=4)], "rank 1 on n1 (process 11) is still agreeing"),
        ([note(0, 2, True), note(1, 2, True)], "all 2 ranks are at 'starting MPI'; messages between their hosts are"),
    ],
)  # fmt: skip
def test_who_is_named(notes: list[dict[str, object]], said: str) -> None:
    start = Start(2, False, {int(str(one["rank"])): one for one in notes})
    assert said in describe_end(start, 8.0)
    assert describe_end(start, 8.0).startswith("the ranks did not connect within 8 s: ")


def test_ranks_that_ended_together_are_named_together() -> None:
    notes = {rank: note(rank, 1, False) for rank in range(6)}
    assert describe_lost(notes, [1]).startswith(
        "rank 1 on n1 (process 11) exited without an error message while loading mpi4py: "
    )
    assert ", rank 3 on n3 (process 13) and 2 more exited without an error message at the same" in describe_lost(
        notes, list(notes)
    )


@pytest.mark.parametrize("when", ["before", "while"])
def test_words_of_this_launch_outlive_the_beginning_of_its_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A rank that finds the lock taken may speak before its holder has cleared an earlier launch's words."""
    folder = tmp_path / "start"
    folder.mkdir(mode=0o700)
    if when == "before":
        (folder / SPOKEN).touch()

    def lock_while_another_speaks(*_: object) -> None:
        (folder / SPOKEN).touch()

    monkeypatch.setattr(rank_side, "_spawn", lambda *_: None)
    if when == "while":
        monkeypatch.setattr(rank_side.fcntl, "flock", lock_while_another_speaks)
    rank_side.NodeWatch(folder, 1).enter(IMPORTING)
    assert (folder / SPOKEN).exists() == (when == "while")
