"""A rank that fails before the ranks have met keeps nobody waiting: all end in time, nothing is left, it is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import launch
from start_faults import (
    NUM_RANKS,
    Cell,
)
from start_problems import problems_of

from mpitrain.comm.supervision import node_watch
from mpitrain.comm.supervision.start_report import Start, describe_end, describe_lost
from mpitrain.comm.supervision.time_limit import start_limit_s
from mpitrain.errors import LaunchError


@pytest.mark.mpi(ranks=NUM_RANKS)
def test_a_rank_that_never_comes_is_named_and_all_end(small_history: Path, tmp_path: Path) -> None:
    assert problems_of(Cell("hang", "before", "mpirun"), small_history, tmp_path, sys.executable) == []


def test_the_limit_is_a_variable_and_by_default_longer_on_several_nodes() -> None:
    assert (start_limit_s({}, True), start_limit_s({}, False)) == (60.0, 300.0)
    assert start_limit_s({"MPITRAIN_START_TIMEOUT_S": "2.5"}, True) == 2.5
    for text in ("0", "-1", "soon", "nan", "inf"):
        with pytest.raises(LaunchError, match=f"MPITRAIN_START_TIMEOUT_S={text}: give seconds"):
            start_limit_s({"MPITRAIN_START_TIMEOUT_S": text}, True)


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
        ([note(0, 2, True), note(1, 0, False)], "rank 1 on n1 (process 11) is still loading torch; see what keeps it"),
        ([note(0, 3, True, where="n0:29500")], "no sign of rank 1 of 2, awaited at n0:29500; see whether it was"),
        ([note(0, 4, True, count=5), note(1, 4, False, count=4, place="read (x.py:3)")],
         "rank 1 on n1 (process 11) is still agreeing on the start in read (x.py:3)"),
        ([note(0, 4, True, count=5), note(1, 4, True, count=4)], "rank 1 on n1 (process 11) is still agreeing"),
        ([note(0, 2, True), note(1, 2, True)], "all 2 ranks are at 'starting MPI'; messages between their hosts are"),
    ],
)  # fmt: skip
def test_who_is_named(notes: list[dict[str, object]], said: str) -> None:
    start = Start(2, False, {int(str(one["rank"])): one for one in notes})
    assert said in describe_end(start, 8.0)
    assert describe_end(start, 8.0).startswith("the ranks did not meet within 8 s: ")


def test_ranks_that_ended_together_are_named_together() -> None:
    notes = {rank: note(rank, 1, False) for rank in range(6)}
    assert describe_lost(notes, [1]).startswith("rank 1 on n1 (process 11) ended without a word while loading mpi4py: ")
    assert ", rank 3 on n3 (process 13) and 2 more ended without a word at the same" in describe_lost(
        notes, list(notes)
    )


@pytest.mark.parametrize("when", ["before", "while"])
def test_words_of_this_launch_outlive_the_beginning_of_its_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A rank that finds the lock taken may speak before its holder has cleared an earlier launch's words."""
    folder = tmp_path / "start"
    folder.mkdir()
    if when == "before":
        (folder / node_watch.SPOKEN).touch()

    def lock_while_another_speaks(*_: object) -> None:
        (folder / node_watch.SPOKEN).touch()

    monkeypatch.setattr(node_watch, "_spawn", lambda *_: None)
    if when == "while":
        monkeypatch.setattr(node_watch.fcntl, "flock", lock_while_another_speaks)
    node_watch.NodeWatch(folder, 1).enter(node_watch.IMPORTING)
    assert (folder / node_watch.SPOKEN).exists() == (when == "while")
