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
from conftest import find_mpirun, launcher_environment
from slowness import slowness
from start_faults import free_port

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
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, command = (path / "environ").read_bytes().split(b"\0"), (path / "cmdline").read_bytes()
        except OSError:
            continue
        is_rank = any(f"{name}={rank}".encode() in words for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"))
        if is_rank and str(run).encode() in command:
            return int(path.name)
    raise AssertionError(f"rank {rank} was not found")


@pytest.mark.mpi(ranks=NUM_RANKS)
@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_is_named(
    small_history: Path, tmp_path: Path, launcher: str, request: pytest.FixtureRequest
) -> None:
    if launcher == "torchrun" and not request.config.getoption("--full"):
        pytest.skip("as by hand, with torchrun's own words after ours; --full")
    run = tmp_path / "run"
    arguments = [f"output.model_dir={run}", f"data.data_path={small_history}", "training.epochs=1000000"]
    started, stderr = start(launcher, arguments, tmp_path)
    try:
        deadline_s = time.monotonic() + 60.0 * slowness()
        while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text()):
            assert time.monotonic() < deadline_s, stderr.read_text()
            time.sleep(0.05)
        os.kill(pid_of_rank(KILLED, run), signal.SIGKILL)
        killed_s = time.monotonic()
        codes = [process.wait(60.0 * slowness()) for process in started]
        seconds = time.monotonic() - killed_s
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = stderr.read_text()
    (line,) = [line for line in re.split(r"[\r\n]", said) if line.startswith("mpitrain: ")]
    named = re.search(rf"rank {KILLED} on {socket.gethostname()} \(process \d+\)", line)
    assert named, line
    assert "ended without a word" in line
    assert seconds < SECONDS_TO_END * slowness()
    assert "Traceback" not in said
    assert "gloo" not in said
    expected = {"by hand": [3, -signal.SIGKILL, 3], "torchrun": [1]}
    assert codes == expected[launcher] if launcher in expected else codes[0] != 0
    assert (run / "logs" / "failure.txt").read_text().startswith("mpitrain: error: ")
