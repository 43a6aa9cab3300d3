"""Runs of four ranks with a fault on one, and what must become of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Finished
from job_processes import start_training

# Runs the command with a fault on rank RANK before optimiser step STEP; the file FAULT_AT tells that it came.
FAULTY_PROGRAM = """
import os, signal, sys, time
from pathlib import Path

kind, rank, step_number, fault_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
from mpitrain.cli.main import main
from mpitrain.errors import DataError
from mpitrain.train.trainer import Trainer

def fail():
    fault_at.touch()
    if kind == "bug": raise ZeroDivisionError("injected")
    if kind == "our error": raise DataError("injected")
    if kind == "sys.exit": sys.exit(3)
    if kind == "sys.exit(0)": sys.exit(0)
    if kind == "os._exit": os._exit(3)
    if kind == "interrupt": raise KeyboardInterrupt
    os.kill(os.getpid(), getattr(signal, kind))

fit = Trainer.fit
def faulty_fit(self):
    take_steps = self._engine.take_steps
    def faulty_steps(first_step, num_steps, *arguments):
        if self._ranks.rank == rank and self.state.global_step == step_number: fail()
        return take_steps(first_step, 1, *arguments)
    self._engine.take_steps = faulty_steps
    fit(self)
Trainer.fit = faulty_fit
sys.exit(main(sys.argv[5:]))
"""

# What one rank does, the job's exit code (None: the launcher's, not 0), and what our one line says (None: nothing).
FAULTS = {
    "bug": (1, "ZeroDivisionError: injected"),
    "our error": (2, "injected"),
    "sys.exit": (1, "SystemExit: 3"),
    "sys.exit(0)": (1, "SystemExit: 0"),
    "interrupt": (1, "interrupted"),
    "os._exit": (None, None),
    "SIGKILL": (None, None),
    "SIGSEGV": (None, None),
}


def endless(small_history: Path) -> list[str]:
    return [f"data.data_path={small_history}", "training.epochs=1000000", "training.save_interval=1"]


@pytest.fixture
def inject(small_history: Path, tmp_path: Path) -> Callable[[str, int, int, int], tuple[Finished, Path]]:
    """Run 4 ranks with a fault on one; fail unless every process is gone after it."""
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY_PROGRAM)

    def run(kind: str, rank: int, step: int, number: int) -> tuple[Finished, Path]:
        folder = tmp_path / f"try-{number}"
        folder.mkdir()
        fault_at = folder / "fault_at"
        words = [str(program), kind, str(rank), str(step), str(fault_at)]
        job = start_training(4, folder / "run", endless(small_history), words)
        job.wait_for((folder / "run" / "config.yaml").exists)
        done = job.wait()
        job.wait_until_gone()
        assert fault_at.exists(), done.stderr
        return done, folder / "run"

    return run


def check_one_line(kind: str, rank: int, done: Finished, folder: Path) -> None:
    code, what = FAULTS[kind]
    assert done.returncode == code, done.stderr
    (line,) = done.our_lines
    traceback = folder / "logs" / "failure.txt"
    assert line == f"mpitrain: error: rank {rank} on {socket.gethostname()}: {what} (traceback in {traceback})"
    assert "Traceback" not in done.stderr
    assert "in faulty_step" in traceback.read_text()
