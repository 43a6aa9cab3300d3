"""How long the whole default run takes, from `mpirun` to the shell's next line."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from conftest import launch

NUM_RUNS = 3


def seconds_of(arguments: list[str], num_ranks: int | None, folder: Path) -> float:
    folder.mkdir()
    started_s = time.monotonic()
    done = launch(arguments, num_ranks, cwd=folder)
    seconds = time.monotonic() - started_s
    assert done.returncode == 0, done.stderr
    return seconds


@pytest.mark.parametrize(("num_ranks", "limit_imports"), [(1, 2.0), (8, 4.0)])  # 1.4 and 3.0 on two quiet cores
def test_the_whole_default_run_takes_few_times_an_import_of_torch(
    tmp_path: Path, num_ranks: int, limit_imports: float, capsys: pytest.CaptureFixture[str]
) -> None:
    runs_s, imports_s = [], []
    for number in range(NUM_RUNS + 1):
        runs_s.append(seconds_of(["-m", "mpitrain"], num_ranks, tmp_path / f"run{number}"))
        imports_s.append(seconds_of(["-c", "import torch"], None, tmp_path / f"import{number}"))
    run_s, import_s = statistics.median(runs_s[1:]), statistics.median(imports_s)  # the first run builds the kernel
    with capsys.disabled():
        print(f"\nthe whole default run on {num_ranks} rank(s): {run_s:.2f} s, {run_s / import_s:.2f} imports of torch")
    assert run_s < limit_imports * import_s
