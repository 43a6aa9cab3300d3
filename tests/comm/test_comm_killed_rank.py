"""A rank that is killed in mid-run is named, in one line of ours, by every launcher; the others end with code 3."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment
from start_faults import free_port

from mpitrain.comm.agent.shared_memory import shared_memory_of

NUM_RANKS = 3
KILLED = 1
LAUNCHERS = ("by hand", "mpirun", "torchrun")
SECONDS_TO_END = 10.0


def start(launcher: str, arguments: list[str], folder: Path) -> tuple[list[subprocess.Popen[str]], Path]:
    """Start all ranks; return what was started, and the file that holds all error output."""
    training = ["-m", "mpitrain", *arguments]
    environs: list[dict[str, str]] = [{}]
    command = [find_mpirun(), "-np", str(NUM_RANKS), sys.executable, *training]
    if launcher == "by hand":
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(NUM_RANKS)}
        environs = [{**meeting, "RANK": str(rank)} for rank in range(NUM_RANKS)]
        command = [sys.executable, *training]
    if launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(NUM_RANKS)]
        command = [sys.executable, *torchrun, "--master-port", str(free_port()), *training]
    stderr = folder / "stderr"
    with stderr.open("a") as file:
        started = [
            subprocess.Popen(command, env={**launcher_environment(), **environ}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=file, text=True, start_new_session=True)
            for environ in environs
        ]  # fmt: skip
    return started, stderr


def pid_of_rank(rank: int, run: Path) -> int:
    log = (run / "logs" / f"rank-{rank:04d}.log").read_text()
    return int(re.findall(rf"rank {rank} of \d+, process (\d+)", log)[-1])


def killed_in_mid_run(
    launcher: str, run: Path, history: Path, ranks: list[int], pause_s: float = 0.0
) -> tuple[list[int], str]:
    """Kill `ranks`, the last one after a pause; return exit codes and the error output."""
    arguments = [f"output.model_dir={run}", f"data.data_path={history}", "training.epochs=1000000"]
    limit_s = TIMEOUT_S
    started, stderr = start(launcher, arguments, run.parent)
    try:
        deadline_s = time.monotonic() + limit_s
        while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text()):
            assert time.monotonic() < deadline_s, stderr.read_text()
            time.sleep(0.05)
        pids = [pid_of_rank(rank, run) for rank in ranks]
        memory = set().union(*map(shared_memory_of, pids))
        if pause_s:
            os.kill(pids[-1], signal.SIGSTOP)  # it could not say anything any more
        for pid in pids[:-1]:
            os.kill(pid, signal.SIGKILL)
        time.sleep(pause_s)
        os.kill(pids[-1], signal.SIGKILL)
        codes = [process.wait(limit_s) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert len(memory) == (1 if launcher == "mpirun" else 0)  # a rank that MPI knows alone has none
    # The supervisor outlives the ranks by a moment.
    limit_at_s = time.monotonic() + limit_s
    while (
        left := [path for name in memory for path in Path("/dev/shm").glob(f"{name}*")]
    ) or "error: " not in stderr.read_text():
        assert time.monotonic() < limit_at_s, left or stderr.read_text()
        time.sleep(0.05)
    return codes, stderr.read_text()


def our_lines(said: str) -> list[str]:
    return [line for line in re.split(r"[\r\n]", said) if line.startswith("mpitrain: ")]


@pytest.mark.lab
def test_a_rank_that_ends_a_moment_after_those_that_its_launcher_ends_is_named_too(
    small_history: Path, tmp_path: Path
) -> None:
    # A launcher that sees the connections of a crashed rank close may be faster than the system, which ends the rank.
    for number in range(3):  # a busy machine may make more of the pause
        run = tmp_path / str(number) / "run"
        run.parent.mkdir()
        codes, said = killed_in_mid_run("by hand", run, small_history, [1, 2, 0], pause_s=0.1)
        (line,) = our_lines(said)
        named = re.findall(r"rank (\d) on \S+ \(process \d+\)", line)
        if codes == [-signal.SIGKILL] * NUM_RANKS and named == ["0", "1", "2"]:
            return
    assert (codes, named) == ([-signal.SIGKILL] * NUM_RANKS, ["0", "1", "2"])


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_is_named(
    small_history: Path, tmp_path: Path, launcher: str, request: pytest.FixtureRequest
) -> None:
    if launcher == "torchrun" and not request.config.getoption("--full"):
        pytest.skip("as by hand, with torchrun's own words after ours; --full")
    run = tmp_path / "run"
    codes, said = killed_in_mid_run(launcher, run, small_history, [KILLED])
    (line,) = our_lines(said)
    named = re.search(rf"rank {KILLED} on {socket.gethostname()} \(process \d+\)", line)
    assert named, line
    assert "exited without an error message" in line
    assert "Traceback" not in said
    assert "gloo" not in said
    expected = {"by hand": [3, -signal.SIGKILL, 3], "torchrun": [1]}
    assert codes == expected[launcher] if launcher in expected else codes[0] != 0
    assert (run / "logs" / "failure.txt").read_text().startswith("mpitrain: error: ")
