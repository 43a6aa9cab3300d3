"""A rank that does not arrive is named with its host and its step, and every process of the job is gone soon after."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment

from mpitrain.comm.watch.notes import CollectiveNotes, noted
from mpitrain.comm.watch.stall_report import Position, describe_stall, render_positions

# Runs the command with a stall on rank RANK before optimiser step STEP; the file FAULT_AT tells when.
STALLING_PROGRAM = """
import os, signal, sys, time
from pathlib import Path

kind, rank, step_number, fault_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
from mpitrain.cli.main import main
from mpitrain.train.trainer import Trainer

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
            self._ranks.watchdog._timeout_s, self._ranks.watchdog._beat_s = 20.0, 2.0
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
SILENT = rf"which has not answered for \d+ s, last seen at step {STEP}.*; see whether its process is stopped"
ASLEEP = (
    "asleep",
    1,
    rf"{IN_EXCHANGE} for rank 1 on {HOST}, which is busy in linger \(stalling.py:\d+\) at step {STEP}; ",
)
STALLS = [
    ("stopped", 2, rf"{IN_EXCHANGE} for rank 2 on {HOST}, {SILENT}"),
    ("stopped", 0, rf"{IN_EXCHANGE} for rank 0 on {HOST}, {SILENT}"),
    ("one collective too many", 3,
     rf"(waits in|waited \d+ s in) barrier \(collective \d+, step {STEP}\).*: some code runs a collective on some of"),
]  # fmt: skip


def settings_of(folder: Path, history: Path, timeout_s: float = TIMEOUT_S) -> list[str]:
    return ["train", f"output.model_dir={folder}", f"data.data_path={history}", "training.epochs=1000000",
            "training.global_batch_size=128", f"distributed.timeout={timeout_s}"]  # fmt: skip


@pytest.mark.mpi(ranks=4)
def test_a_rank_that_does_not_arrive_is_named_and_all_end(small_history: Path, tmp_path: Path) -> None:
    check_stall(small_history, tmp_path, *ASLEEP)


@pytest.mark.mpi(ranks=4)
@pytest.mark.parametrize(("kind", "rank", "said"), STALLS)
def test_other_stalls_are_named_and_all_end(
    small_history: Path, tmp_path: Path, kind: str, rank: int, said: str
) -> None:
    check_stall(small_history, tmp_path, kind, rank, said)


def check_stall(small_history: Path, tmp_path: Path, kind: str, rank: int, said: str) -> None:
    program, fault_at = tmp_path / "stalling.py", tmp_path / "fault_at"
    program.write_text(STALLING_PROGRAM)
    words = [program, kind, rank, STEP, fault_at, *settings_of(tmp_path / "run", small_history)]
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


def test_without_a_launcher_each_rank_ends_itself(small_history: Path, tmp_path: Path) -> None:
    """Over gloo nobody can kill the rank that sleeps: its own thread ends it."""
    program, fault_at = tmp_path / "stalling.py", tmp_path / "fault_at"
    program.write_text(STALLING_PROGRAM)
    words = [program, "asleep", 1, STEP, fault_at, *settings_of(tmp_path / "run", small_history)]
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
        rf"rank 0 on {HOST}: waited \d+ s in all_reduce .* for rank 1 on {HOST}, which is busy in linger", line
    )


@pytest.mark.mpi(ranks=2)
def test_a_suspended_job_goes_on(small_history: Path, tmp_path: Path) -> None:
    """A scheduler may stop all ranks for longer than the time limit: nobody has waited."""
    words = [
        "-m",
        "mpitrain",
        *settings_of(tmp_path / "run", small_history, STALL_LIMIT_S),
        "training.max_steps=1000000",
    ]
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        job = subprocess.Popen([find_mpirun(), "-np", "2", sys.executable, *words], stdout=subprocess.DEVNULL,
                               stderr=stderr, env=launcher_environment(), start_new_session=True)  # fmt: skip
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        pids = wait_for_ranks(job, metrics)
        signal_all(pids, signal.SIGSTOP)
        time.sleep(STALL_LIMIT_S + 2)
        lines = len(metrics.read_text().splitlines())
        signal_all(pids, signal.SIGCONT)
        wait_for(lambda: len(metrics.read_text().splitlines()) > lines, job)
        signal_all(pids, signal.SIGTERM)
        assert job.wait(60) == 5, log.read_text()
    finally:
        job.kill()
        job.wait()


def wait_for_ranks(job: subprocess.Popen[bytes], metrics: Path) -> list[int]:
    """The processes of both ranks, once they train."""
    wait_for(lambda: metrics.exists() and metrics.read_text(), job)
    found = subprocess.run(["pgrep", "-f", str(metrics.parent)], capture_output=True, text=True).stdout.split()
    return [pid for pid in map(int, found) if Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve()]


def wait_for(condition: Callable[[], object], job: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert job.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    assert len(pids) == 2
    for pid in pids:
        subprocess.run(["kill", f"-{number.value}", str(pid)], check=True)


def position(rank: int, collective: str | None, count: int = 7, silent_s: float | None = None) -> Position:
    return Position(rank, f"n{rank}", count, collective, 3, "" if collective else "read (file.py:9)", silent_s)


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([position(0, "barrier"), position(1, None)],
         "for rank 1 on n1, which is busy in read (file.py:9) at step 3; raise distributed.timeout_s"),
        ([position(0, "barrier"), position(1, "barrier", 6, 9.0)],
         "for rank 1 on n1, which has not answered for 9 s, last seen at step 3, in barrier; see whether"),
        ([position(0, "barrier"), position(1, "barrier")],
         "in which all 2 ranks are: the network between their hosts does not deliver"),
        ([position(0, "exchange"), position(1, "exchange"), position(2, "barrier", 6)],
         ", but rank 2 on n2 waits in barrier (collective 6, step 3): some code runs a collective on some of"),
        ([position(0, "barrier"), position(1, "barrier"), position(2, "barrier", 6)],
         ", but rank 2 on n2 waits in barrier (collective 6, step 3)"),
        ([position(0, "barrier"), *(position(rank, None) for rank in range(1, 9))], ", and 5 more; raise"),
    ],
)  # fmt: skip
def test_who_is_named(positions: list[Position], said: str) -> None:
    message = describe_stall(0, positions, 6.0)
    assert message.startswith(f"waited 6 s in {positions[0].collective} (collective 7, step 3)")
    assert said in message
    assert len(render_positions(positions).splitlines()) == len(positions)


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
