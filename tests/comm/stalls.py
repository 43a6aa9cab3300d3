"""A run of four ranks of which one stalls in mid-run, and what must become of it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from conftest import TIMEOUT_S, find_mpirun, launcher_environment

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

IN_EXCHANGE = rf"waited \d+ s in take_steps \(collective \d+, step {STEP}\)"


def settings_of(folder: Path, history: Path, timeout_s: float = TIMEOUT_S) -> list[str]:
    return ["train", f"output.model_dir={folder}", f"data.data_path={history}", "training.epochs=1000000",
            "training.global_batch_size=128", f"distributed.timeout={timeout_s}"]  # fmt: skip


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
