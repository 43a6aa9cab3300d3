"""`jobs/notebook.py` runs as a script, cell after cell, and draws what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, launcher_environment


def test_the_notebook_runs_and_draws(tmp_path: Path) -> None:
    for name in ("xarray", "iris_sample_data"):
        pytest.importorskip(name)
    environ = {**launcher_environment(), "MPLBACKEND": "agg", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, str(PROJECT / "jobs" / "notebook.py")], cwd=tmp_path, env=environ, capture_output=True,
        text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "notebook_run" / "report.html").is_file()
    for name in ("notebook_loss.png", "notebook_map.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    assert (tmp_path / "notebook_emulator.f90").stat().st_size > 10_000
    assert "SHA-256" in done.stdout
    network, last_year = (
        float(word) for word in re.findall(r"RMSE in K: (\S+) and of last year's value: (\S+)", done.stdout)[0]
    )
    assert network < last_year
