"""A rank that does not arrive is named with its host and its step, and every process of the job is gone soon after."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment

from mpitrain.comm.agent.position import CollectiveNotes, noted
from mpitrain.comm.agent.words import describe_damage, describe_stall, render_positions

# Runs the command with a stall on rank RANK before optimiser step STEP; the file FAULT_AT tells when.
STALLING_PROGRAM = """
import os, signal, sys, time
from pathlib import Path

kind, rank, step_number, fault_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
from mpitrain.cli.main import main
from mpitrain.comm.agent.rank_side import NodeWatch
from mpitrain.train.trainer import Trainer

limits, follow = [], NodeWatch.follow
def noting_follow(self, notes, limit=None):
    if limit is not None: limits.append(limit)
    return follow(self, notes, limit)
NodeWatch.follow = noting_follow

def linger():
    while True: time.sleep(1)

def stall(ranks):
    fault_at.write_text(str(os.getpid()))
    if kind == "stopped": os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "asleep": linger()
    if kind == "one collective too many": ranks.barrier()

fit = Trainer.fit
def stalling_fit(self):
    take_steps = self._engine.take_steps
    def stalling_steps(first_step, num_steps, *arguments):
        if self.state.global_step == step_number:
            # Until here the ranks have all the time that a slow machine may need.
            for limit in limits: object.__setattr__(limit, "limit_s", 20.0)
            if self._ranks.rank == rank: stall(self._ranks)
        return take_steps(first_step, 1, *arguments)
    self._engine.take_steps = stalling_steps
    fit(self)
Trainer.fit = stalling_fit
sys.exit(main(sys.argv[5:]))
"""
HOST = socket.gethostname()
STEP = 12
STALL_LIMIT_S = 20.0

IN_EXCHANGE = rf"waited \d+ s in take_steps \(collective \d+, step {STEP}\)"
PROCESS = r"\(process \d+(, \w+)*\)"
SILENT = rf"which has not answered for \d+ s, last seen at step {STEP}.*; see whether its process is stopped"
ASLEEP = (
    "asleep",
    1,
    rf"{IN_EXCHANGE} for rank 1 on {HOST} {PROCESS}, which is busy in linger \(stalling.py:\d+\) at step {STEP}; ",
)
STALLS = [
    ("stopped", 2, rf"{IN_EXCHANGE} for rank 2 on {HOST} {PROCESS}, {SILENT}"),
    ("stopped", 0, rf"{IN_EXCHANGE} for rank 0 on {HOST} {PROCESS}, {SILENT}"),
    ("one collective too many", 3,
     rf"(waits in|waited \d+ s in) barrier \(collective \d+, step {STEP}\).*: some code runs a collective on some of"),
]  # fmt: skip


def settings_of(folder: Path, history: Path, timeout_s: float) -> list[str]:
    return ["train", f"output.model_dir={folder}", f"data.data_path={history}", "training.epochs=1000000",
            "training.global_batch_size=128", f"distributed.timeout={timeout_s:.1f}"]  # fmt: skip


def test_a_rank_that_does_not_arrive_is_named_and_all_end(small_history: Path, tmp_path: Path) -> None:
    check_stall(small_history, tmp_path, *ASLEEP)


@pytest.mark.lab
@pytest.mark.parametrize(("kind", "rank", "said"), STALLS)
def test_other_stalls_are_named_and_all_end(
    small_history: Path, tmp_path: Path, kind: str, rank: int, said: str
) -> None:
    check_stall(small_history, tmp_path, kind, rank, said)


def check_stall(small_history: Path, tmp_path: Path, kind: str, rank: int, said: str) -> None:
    program, fault_at = tmp_path / "stalling.py", tmp_path / "fault_at"
    program.write_text(STALLING_PROGRAM)
    words = [program, kind, rank, STEP, fault_at, *settings_of(tmp_path / "run", small_history, TIMEOUT_S)]
    done = subprocess.run(
        [find_mpirun(), "-np", "4", sys.executable, *map(str, words)], capture_output=True, text=True,
        env=launcher_environment(), timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    pid = fault_at.read_text()
    assert done.returncode == 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mpitrain: ")]
    assert re.match(rf"mpitrain: error: rank \d on {HOST}: ", line)
    assert re.search(said, line), line
    details = (tmp_path / "run" / "logs" / "failure.txt").read_text()
    assert all(f"rank {number} on {HOST}: collective " in details for number in range(4))
    assert is_gone_soon(int(pid)), "the stalled process is left"


def is_gone_soon(pid: int) -> bool:
    deadline_s = time.monotonic() + TIMEOUT_S
    while is_alive(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.lab
def test_without_a_launcher_each_rank_ends_itself(small_history: Path, tmp_path: Path) -> None:
    """Over gloo nobody can kill the rank that sleeps: its own thread ends it."""
    program, fault_at = tmp_path / "stalling.py", tmp_path / "fault_at"
    program.write_text(STALLING_PROGRAM)
    words = [program, "asleep", 1, STEP, fault_at, *settings_of(tmp_path / "run", small_history, STALL_LIMIT_S)]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *map(str, words)], env={**launcher_environment(), **meeting, "RANK": str(rank)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        texts = [rank.communicate(timeout=TIMEOUT_S)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [3, 3], texts
    (line,) = [line for text in texts for line in text.splitlines() if line.startswith("mpitrain: error")]
    assert re.search(
        rf"rank 0 on {HOST}: waited \d+ s in all_reduce .* for rank 1 on {HOST} {PROCESS}, which is busy in linger",
        line,
    )


@pytest.mark.lab
def test_a_suspended_job_goes_on(small_history: Path, tmp_path: Path) -> None:
    """A scheduler may stop all ranks for longer than the time limit: nobody has waited."""
    timeout_s = STALL_LIMIT_S
    words = ["-m", "mpitrain", *settings_of(tmp_path / "run", small_history, timeout_s), "training.max_steps=1000000"]
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        job = subprocess.Popen([find_mpirun(), "-np", "2", sys.executable, *words], stdout=subprocess.DEVNULL,
                               stderr=stderr, env=launcher_environment(), start_new_session=True)  # fmt: skip
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        pids = wait_for_ranks(job, metrics)
        signal_all(pids, signal.SIGSTOP)
        time.sleep(timeout_s + 2)
        lines = len(metrics.read_text().splitlines())
        signal_all(pids, signal.SIGCONT)
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(metrics.read_text().splitlines()) == lines:
            assert job.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        time.sleep(3)  # in which nobody is blamed
        assert job.poll() is None, log.read_text()
        signal_all(pids, signal.SIGTERM)
        assert job.wait(TIMEOUT_S) == 5, log.read_text()
    finally:
        job.kill()
        job.wait()


def wait_for_ranks(job: subprocess.Popen[bytes], metrics: Path) -> list[int]:
    """The processes of both ranks, once they train."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not (metrics.exists() and metrics.read_text()):
        assert job.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    found = subprocess.run(["pgrep", "-f", str(metrics.parent)], capture_output=True, text=True).stdout.split()
    return [pid for pid in map(int, found) if Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve()]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    assert len(pids) == 2
    for pid in pids:
        subprocess.run(["kill", f"-{number.value}", str(pid)], check=True)


def note(rank: int, collective: str | None, count: int = 7, silent_s: float = 0.0, **more: object) -> dict[str, object]:
    place = "" if collective else "read (file.py:9)"
    return {
        "rank": rank, "host": f"n{rank}", "pid": 10 + rank, "waits": collective is not None, "collective": collective,
        "count": count, "step": 3, "place": place, "silent_s": silent_s, "beat_s": 1.0, "waited_s": 6.0, "node": 0,
        "num_of_node": 2, "meetings": [0, 0], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([note(0, "barrier"), note(1, None)],
         "for rank 1 on n1 (process 11), which is busy in read (file.py:9) at step 3; raise distributed.timeout_s"),
        ([note(0, "barrier"), note(1, None, file="a.nc")], "is busy opening a.nc at step 3"),
        ([note(0, "barrier"), note(1, "barrier", 6, 9.0)],
         "for rank 1 on n1 (process 11), which has not answered for 9 s, last seen at step 3, in barrier; see whether"),
        ([note(0, "barrier"), note(1, "barrier")],
         "in which all 2 ranks are: the network between their hosts does not deliver"),
        ([note(0, "exchange"), note(1, "exchange"), note(2, "barrier", 6)],
         ", but rank 2 on n2 (process 12) waits in barrier (collective 6, step 3): some code runs a collective"),
        ([note(0, "barrier"), note(1, "barrier"), note(2, "barrier", 6)],
         ", but rank 2 on n2 (process 12) waits in barrier (collective 6, step 3)"),
        ([note(0, "barrier"), *(note(rank, None) for rank in range(1, 9))], "and 4 more; raise"),
        ([note(0, "barrier"), note(1, "barrier", state="failed", waits=False), note(2, None)],
         "for rank 2 on n2 (process 12), which is busy in read (file.py:9) at step 3; raise"),
    ],
)  # fmt: skip
def test_the_late_rank_is_named(notes: list[dict[str, object]], said: str) -> None:
    by_rank = {int(str(one["rank"])): one for one in notes}
    message = describe_stall(0, by_rank, len(notes))
    assert message.startswith(f"waited 6 s in {notes[0]['collective']} (collective 7, step 3)")
    assert said in message
    assert len(render_positions(by_rank).splitlines()) == len(notes)
    assert describe_damage(0, by_rank) == ""


def test_ranks_of_a_node_that_shares_no_folder_are_counted() -> None:
    assert "for ranks of other nodes (2 have no note here)" in describe_stall(0, {0: note(0, "barrier")}, 3)


LONG = {"waited_s": 20.0}


@pytest.mark.parametrize(
    ("notes", "is_damaged"),
    [
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "take_steps", meetings=[5, 4], **LONG)], True),
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "barrier", 8, meetings=[6, 6], **LONG)], True),
        # One that computes, is stopped, has no note, or is on another node may still come.
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "take_steps", meetings=[4, 4], **LONG)], False),
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "take_steps", 7, 9.0, meetings=[5, 4])], False),
        ([note(0, "take_steps", meetings=[5, 4], **LONG)], False),
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "take_steps", meetings=[6, 5], node=1)], False),
        ([note(0, "take_steps", meetings=[4, 4], **LONG), note(1, "take_steps", meetings=[5, 4], **LONG)], False),
        ([note(0, "take_steps", meetings=[5, 4], **LONG), note(1, "take_steps", meetings=[5, 4], waited_s=0.1)], False),
    ],
)
def test_shared_memory_in_which_nobody_can_come_any_more_is_damaged(
    notes: list[dict[str, object]], is_damaged: bool
) -> None:
    message = describe_damage(0, {int(str(one["rank"])): one for one in notes})
    assert ("damaged" in message) == is_damaged
    assert ("rank 1 on n1" in message) == is_damaged


class Verbs:
    def __init__(self) -> None:
        self.notes = CollectiveNotes()

    @noted
    def barrier(self) -> str | None:
        return self.notes.collective

    @noted
    def broken(self) -> None:
        raise RuntimeError


def test_collectives_are_noted_while_they_run() -> None:
    verbs = Verbs()
    assert verbs.barrier() == "barrier"
    assert (verbs.notes.collective, verbs.notes.count) == (None, 1)
    with pytest.raises(RuntimeError):
        verbs.broken()
    assert (verbs.notes.collective, verbs.notes.count) == ("broken", 2)
