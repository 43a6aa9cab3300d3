"""Ctrl-C while the kernel is compiled stops the run as it does at any other moment, and blames no compiler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import TIMEOUT_S, launcher_environment


def test_ctrl_c_during_the_build(tmp_path: Path, small_history: Path) -> None:
    compiler = tmp_path / "slow-c++"
    compiler.write_text(f'#!/bin/sh\ntouch {tmp_path / "building"}\nsleep 1\nexec {shutil.which("c++")} "$@"\n')
    compiler.chmod(0o755)
    environ = {**launcher_environment(), "CXX": str(compiler), "MPITRAIN_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "mpitrain", "--data", str(small_history), "--epochs", "1000"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "building").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to Python and to all that it has started
        stdout, stderr = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    assert running.returncode == 5, stderr
    assert "engine compiled" in stdout
    (line,) = [line for line in stderr.splitlines() if line.startswith("mpitrain:")]
    assert line.startswith("mpitrain: stopped by SIGINT at step ")
