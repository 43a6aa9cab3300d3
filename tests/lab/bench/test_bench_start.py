"""How long the whole default run takes, from `mpirun` to the shell's next line."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from conftest import launch

NUM_RUNS = 3
# Python with torch, on the machine for which the limits are meant; a slower one takes as many times longer.
IMPORT_S = 1.05


def seconds_of(arguments: list[str], num_ranks: int | None, folder: Path) -> float:
    folder.mkdir()
    started_s = time.monotonic()
    done = launch(arguments, num_ranks, cwd=folder)
    seconds = time.monotonic() - started_s
    assert done.returncode == 0, done.stderr
    return seconds


@pytest.mark.parametrize(("num_ranks", "limit_s"), [(1, 2.5), pytest.param(8, 6.0, marks=pytest.mark.mpi(ranks=8))])
def test_the_whole_default_run_takes_seconds(
    tmp_path: Path, num_ranks: int, limit_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_s, imports_s = [], []
    for number in range(NUM_RUNS + 1):
        runs_s.append(seconds_of(["-m", "mpitrain"], num_ranks, tmp_path / f"run{number}"))
        imports_s.append(seconds_of(["-c", "import torch"], None, tmp_path / f"import{number}"))
    run_s, import_s = statistics.median(runs_s[1:]), statistics.median(imports_s)  # the first run builds the kernel
    with capsys.disabled():
        print(f"\nthe whole default run on {num_ranks} rank(s): {run_s:.2f} s, `import torch` alone {import_s:.2f} s")
    assert run_s < limit_s * max(1.0, import_s / IMPORT_S)
