"""Stalls of other kinds, without a launcher, and of a job that is suspended."""

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
from stalls import HOST, IN_EXCHANGE, STALLING_PROGRAM, STEP, check_stall, settings_of

STALL_LIMIT_S = 20.0
SILENT = rf"which has not answered for \d+ s, last seen at step {STEP}.*; see whether its process is stopped"
STALLS = [
    ("stopped", 2, rf"{IN_EXCHANGE} for rank 2 on {HOST}, {SILENT}"),
    ("stopped", 0, rf"{IN_EXCHANGE} for rank 0 on {HOST}, {SILENT}"),
    ("one collective too many", 3,
     rf"(waits in|waited \d+ s in) barrier \(collective \d+, step {STEP}\).*: some code runs a collective on some of"),
]  # fmt: skip


@pytest.mark.mpi(ranks=4)
@pytest.mark.parametrize(("kind", "rank", "said"), STALLS)
def test_other_stalls_are_named_and_all_end(
    small_history: Path, tmp_path: Path, kind: str, rank: int, said: str
) -> None:
    check_stall(small_history, tmp_path, kind, rank, said)


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
