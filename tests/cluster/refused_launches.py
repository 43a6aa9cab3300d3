"""A launch that must be refused: how it is started, and what it must have said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, Finished, launcher_environment

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if re.match(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI|SLURM|MPI_LOCAL", name)]:
        monkeypatch.delenv(name)


def start(prefix: list[str], folder: Path, environ: dict[str, str], python: str = sys.executable) -> Finished:
    command = [*prefix, python, "-m", "mpitrain", "train", f"output.model_dir={folder}"]
    done = subprocess.run(
        command, env={**launcher_environment(), **environ}, capture_output=True, text=True, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def assert_refused(done: Finished, words: tuple[str, ...], folder: Path) -> None:
    assert done.returncode == 3, done.stderr
    assert len(done.our_lines) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists(), "it began to train"
