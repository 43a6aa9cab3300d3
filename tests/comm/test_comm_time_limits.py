"""What the node's agent counts: ranks that end within one moment, and ticks in place of the clock's time."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain.comm import agent
from mpitrain.comm.agent import agent as node_agent
from mpitrain.comm.agent import rank_side
from mpitrain.comm.agent.agent import NodeAgent
from mpitrain.comm.agent.folder import write_note
from mpitrain.comm.agent.position import CollectiveNotes
from mpitrain.comm.agent.processes import process_born
from mpitrain.comm.agent.rank_side import NodeWatch

SUSPENDED_S = 3600.0


class LeapingClock:
    """A clock that is an hour later each time it is read, as after a suspension of the whole job."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += SUSPENDED_S
        return self.now_s


def agent_of(folder: Path) -> Any:
    order = {"folder": str(folder / "own"), "shared": str(folder / "shared"), "limit_s": 60.0}
    (folder / "shared").mkdir()
    return NodeAgent(order)


def watch_ends(folder: Path, ends: list[list[int]], *, is_ending: bool) -> Any:
    """An agent of ranks 0, 1 and 2, of which those in `ends` end, wait by wait."""
    watcher = agent_of(folder)
    watcher._processes = dict.fromkeys((0, 1, 2), SimpleNamespace(is_ending=lambda: is_ending))

    def wait(limit_s: float) -> list[int]:
        ended = ends.pop(0)
        for rank in ended:
            del watcher._processes[rank]
        return ended

    watcher._wait = wait
    return watcher


def test_ranks_that_end_within_a_moment_are_all_named(tmp_path: Path) -> None:
    assert watch_ends(tmp_path, [[2], [], [0, 1]], is_ending=False)._ended_within(60.0) == [2, 0, 1]


def test_the_moment_over_only_ranks_that_the_system_is_ending_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending").mkdir()
    monkeypatch.setattr(agent, "ENDING_S", 60.0)
    assert watch_ends(tmp_path, [[1]], is_ending=False)._ended_within(0.0) == []
    assert watch_ends(tmp_path / "ending", [[2], [], [0, 1]], is_ending=True)._ended_within(0.0) == [2, 0, 1]


def test_an_agent_that_was_suspended_has_waited_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, kept = agent_of(tmp_path), list[float]()
    monkeypatch.setattr(node_agent, "time", LeapingClock())
    watcher._processes = {0: None}
    watcher._notes = {0: {"state": "running"}}

    def keep_time(tick_s: float) -> None:
        kept.append(tick_s)
        watcher._processes.clear()

    played = {"_look": lambda: None, "_wait": lambda limit_s: [], "_keep_time": keep_time, "_share": lambda s: None,
              "_judge": lambda ended: None, "_unshare": lambda: None,
              "_stay_for_late_ranks": lambda: False}  # fmt: skip
    for name, function in played.items():
        setattr(watcher, name, function)
    watcher.watch()
    assert len(kept) == 1
    assert 0.0 < kept[0] <= 2 * agent.TICK_S


def test_a_rank_that_was_suspended_in_a_collective_has_waited_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, posted, waits = NodeWatch(), list[float](), [False, False, False, True]
    monkeypatch.setattr(rank_side, "time", LeapingClock())
    monkeypatch.setattr(rank_side, "position_of", lambda notes: {"count": 1, "step": 1, "meetings": 1, "waits": True})
    monkeypatch.setattr(watch, "tell", lambda **fields: posted.append(fields["waited_s"]))
    watch._keep_telling(SimpleNamespace(wait=lambda beat_s: waits.pop(0)), CollectiveNotes(), None)  # type: ignore[arg-type]
    assert len(posted) == 4
    assert 0.0 < posted[-1] <= 8 * rank_side._FOLLOW_START_S


def test_a_rank_whose_first_note_came_after_the_last_look_has_ended_with_the_others(tmp_path: Path) -> None:
    watcher, folder = agent_of(tmp_path), tmp_path / "own"
    folder.mkdir(mode=0o700)
    with contextlib.ExitStack() as processes:
        for rank in range(2):
            process = processes.enter_context(subprocess.Popen(["sleep", "60"]))
            fields = {"pid": process.pid, "born": process_born(process.pid), "rank": rank, "state": "running"}
            write_note(folder, f"rank-{rank:06d}", {**fields, "stage": 0, "told_s": 0.0})
            if rank == 0:
                watcher._look()
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still to be seen
        assert watcher._wait(60.0) == [0, 1]
