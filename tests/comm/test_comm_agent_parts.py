"""Parts of the node's agent and of its ranks, each alone: folders, shared memory, processes, notes of collectives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, launcher_environment

from mpitrain.cluster import Place
from mpitrain.comm.agent import processes, shared_memory, words
from mpitrain.comm.agent.arrival import open_watch
from mpitrain.comm.agent.folder import is_private, open_private_folder
from mpitrain.comm.agent.position import CollectiveNotes, noted
from mpitrain.comm.mpi.communicator import _rows_of_round


def test_the_names_given_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    for name in ("ours_0", "ours_1", "other_0"):
        (tmp_path / name).touch()
    shared_memory.remove_shared_memory(["ours", "gone"])
    assert [path.name for path in tmp_path.iterdir()] == ["other_0"]


def test_names_that_others_hold_are_passed_over_one_by_one(tmp_path: Path) -> None:
    assert open_private_folder(tmp_path, "own").name == "own"
    for held, following in (("held", "held-2"), ("held-2", "held-3")):
        (tmp_path / held).touch()
        assert open_private_folder(tmp_path, "held").name == following
        (tmp_path / following).rmdir()
    for number in range(3, 9):
        (tmp_path / f"held-{number}").touch()
    with pytest.raises(PermissionError, match="another user owns"):
        open_private_folder(tmp_path, "held")


def test_a_closed_folder_of_another_user_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "held").mkdir(mode=0o700)
    assert is_private(tmp_path / "held")
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert not is_private(tmp_path / "held")


@pytest.mark.parametrize(
    ("flags", "pending", "is_ending"),
    [(0, 0, False), (0x4, 0, True), (0, 1 << (signal.SIGKILL - 1), True), (0, 1 << (signal.SIGTERM - 1), False)],
)
@pytest.mark.parametrize("whose", ["SigPnd", "ShdPnd"])
def test_a_process_is_ending_that_exits_or_that_a_sigkill_awaits(
    monkeypatch: pytest.MonkeyPatch, whose: str, flags: int, pending: int, is_ending: bool
) -> None:
    masks = {"SigPnd": 0, "ShdPnd": 0, whose: pending, "SigBlk": 1 << (signal.SIGKILL - 1)}
    status = "".join(f"{name}:\t{mask:016x}\n" for name, mask in masks.items()).encode()
    files = {"stat": f"7 (a) b) D 1 7 7 0 -1 {flags} 0 0".encode(), "status": status}
    monkeypatch.setattr(processes, "read_of_process", lambda pid, name: files[name])
    assert processes.is_ending(7) == is_ending


def test_nodes_that_share_the_folder_for_temporary_files_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folders = []
    for host in ("n1", "n2"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        folders.append(open_watch(Place(0, 2, True, False), "launch", "start", {})._folders())
    (first,), (second,) = folders  # the one for all nodes is made by their agents
    assert first != second
    assert [first, second] == sorted(tmp_path.iterdir()) or [second, first] == sorted(tmp_path.iterdir())


def test_a_launch_in_the_folder_for_temporary_files_still_says_what_it_has_to(tmp_path: Path) -> None:
    environ = {**launcher_environment(), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "mpitrain", "doctor", "--static"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.startswith("mpitrain doctor: one process")
    assert list(tmp_path.iterdir()) == []


class Communicator:
    def __init__(self) -> None:
        self.notes, self.seen = CollectiveNotes(), ""

    @noted
    def barrier(self, answer: int) -> int:
        self.seen = self.notes.collective or ""
        return 1 // answer


def test_a_collective_is_noted_while_it_runs_and_after_it_fails() -> None:
    communicator = Communicator()
    assert communicator.barrier(1) == 1
    assert (communicator.seen, communicator.notes.collective, communicator.notes.count) == ("barrier", None, 1)
    assert communicator.notes.seconds > 0.0
    with pytest.raises(ZeroDivisionError):
        communicator.barrier(0)
    assert (communicator.notes.collective, communicator.notes.count) == ("barrier", 2)


@pytest.mark.parametrize("num_rows", [1, 3, 100])
def test_rows_of_all_ranks_travel_once_in_rounds_of_so_many(num_rows: int) -> None:
    counts, travelled = [4, 0, 7], list[int]()
    for first in range(0, max(counts), num_rows):
        sizes, starts = _rows_of_round(counts, first, num_rows)
        assert max(sizes) <= num_rows
        travelled += [row for size, start in zip(sizes, starts, strict=True) for row in range(start, start + size)]
    assert sorted(travelled) == list(range(sum(counts)))


# The agent's thread that reads the settings, at work when the last rank ends: as in a start that takes long.
READING_AT_THE_END = """
import threading, time
from mpitrain.comm.agent import agent
from mpitrain.config import load_run_config

def read_without_end():
    while True:
        load_run_config(None, ["training.optimizer=sgd"])

def watch(self):
    threading.Thread(target=read_without_end, daemon=True).start()
    time.sleep(1.0)

agent.NodeAgent.watch = watch
agent.main()
"""


def test_an_agent_that_ends_while_it_reads_the_settings_says_nothing(tmp_path: Path) -> None:
    order = {"folder": str(tmp_path), "shared": str(tmp_path), "limit_s": 60, "lock": 3}
    done = subprocess.run(
        [sys.executable, "-c", READING_AT_THE_END], input=json.dumps(order), env=launcher_environment(),
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("count", "said"), [(4, "0, 1, 2, 3"), (5, "0, 1, 2, 3 and 1 more"), (9, "0, 1, 2, 3 and 5 more")]
)
def test_a_list_names_the_first_four(count: int, said: str) -> None:
    assert words.join([str(number) for number in range(count)]) == said


def waiting(rank: int, collective: str = "all_reduce", count: int = 7) -> dict[str, object]:
    """The note of a rank on another host that waits in a collective, and answers."""
    return {"rank": rank, "host": "elsewhere", "pid": 100 + rank, "collective": collective, "count": count, "step": 3,
            "waits": True, "waited_s": 60.0, "silent_s": 0.0}  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "where"),
    [
        (waiting(2, "broadcast_object"), "broadcast_object (collective 7, step 3)"),
        (waiting(2, count=6), "all_reduce (collective 6, step 3)"),
    ],
    ids=["another collective", "another call of it"],
)
def test_a_rank_that_waits_elsewhere_is_named(odd: dict[str, object], where: str) -> None:
    said = words.describe_stall(0, {0: waiting(0), 1: waiting(1), 2: odd}, 3)
    assert said == (
        "waited 60 s in all_reduce (collective 7, step 3), but rank 2 on elsewhere (process 102) waits in "
        f"{where}: some code runs a collective on some of the ranks only"
    )


@pytest.mark.parametrize(
    ("launcher", "wrapper"),
    [
        ({"PMI_RANK": "1"}, "export RANK=$PMI_RANK WORLD_SIZE=2"),  # as scripts do for code that reads RANK
        ({"PMI_RANK": "1", "SLURM_PROCID": "0"}, "true"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "export OMP_NUM_THREADS=1"),
    ],
)
def test_the_launcher_is_above_a_wrapper_of_the_rank(launcher: dict[str, str], wrapper: str) -> None:
    program = "import os; from mpitrain.comm.agent.folder import launcher_pid; print(launcher_pid(os.environ))"
    words = ["bash", "-c", f'{wrapper}; "$0" -c "$1"; true', sys.executable, program]
    done = subprocess.run(words, env={**launcher_environment(), **launcher}, capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.getpid()


def test_a_launcher_inside_of_a_step_is_found() -> None:
    """The inner launcher has the step's variable too, and starts the ranks with one of its own."""
    program = "import os; from mpitrain.comm.agent.folder import launcher_pid; print(launcher_pid(os.environ))"
    words = ["bash", "-c", 'echo $$; PMI_RANK=1 "$0" -c "$1"; true', sys.executable, program]
    environ = {**launcher_environment(), "SLURM_PROCID": "0"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    inner, found = done.stdout.split()
    assert found == inner
