"""`jobs/notebook.py` runs as a script, cell after cell, and draws what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, launcher_environment


def test_the_notebook_runs_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    environ = {**launcher_environment(), "MPLBACKEND": "agg", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, str(PROJECT / "jobs" / "notebook.py")], cwd=tmp_path, env=environ, capture_output=True,
        text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notebook_run" / "report.html").is_file()
    for name in ("notebook_loss.png", "notebook_map.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    assert "SHA-256" in done.stdout
