"""`mpitrain bench ensemble`: figures computed right, memory that is shared counted once, and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import launch

from mpitrain.bench.ensemble.measure import EnsembleCase, EnsembleMemory, EnsembleTimes, _timed, render
from mpitrain.bench.ensemble.memory import peak_pss
from mpitrain.bench.step_cases import network_of
from mpitrain.errors import MpitrainError

MIB = 1 << 20
# Two processes that hold the same 64 MiB, and 32 MiB each of their own; for a while both do.
SHARING = """
import mmap, os, time
shared = mmap.mmap(-1, 64 << 20)
shared.write(b"x" * (64 << 20))
rank = 1 if os.fork() else 0
shared[:: 4096]
own = b"y" * (32 << 20)
shared[rank] = 0
while shared[0] or shared[1]:
    time.sleep(0.01)
time.sleep(1)
"""


def test_figures_of_made_up_times() -> None:
    case = EnsembleCase(network_of("7-64-64-1"), members=10, epochs=20, ranks=2, alone=2, rounds=1)
    times = EnsembleTimes(
        wall_s=6.6, start_s=1.0, member_s=1.0, one_rank_wall_s=11.2, one_rank_cpu_s=21.05,
        many_cpu_s=5.2, few_cpu_s=1.21, launch_s=3.3, baselines_s={"loop": 66.0, "ray": 33.0},
    )  # fmt: skip
    assert times.figures(case) == {
        "wall_over_ideal": pytest.approx(1.1),
        "launches_over_wall": pytest.approx(5.0),
        "beyond_training_ms_a_member": pytest.approx(5.0),
    }
    memory = EnsembleMemory(4_000_000, one_member=300 * MIB, all_members=310 * MIB, imports=200 * MIB)
    assert memory.ratio == pytest.approx(1.1)
    text = render(case, times, memory)
    assert "a member costs 5.0 ms of processor time beyond its epochs" in text
    assert "300 MiB for one member on 4000000 samples, 310 MiB for 10: 1.10 times" in text
    assert [line.split()[-1] for line in text.splitlines() if "plain PyTorch" in line] == ["10.00", "5.00"]


def test_shared_memory_counts_once() -> None:
    peak = peak_pss([sys.executable, "-c", SHARING]) / MIB
    assert 128 <= peak < 160
    with pytest.raises(MpitrainError, match="exit code 3"):
        peak_pss([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_member_with_all_files_of_a_run_costs_a_small_part_of_a_launch(
    small_history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processor times, in turn: an ensemble of many short members beyond one of two, and one member's own launch."""
    words = [*network_of("7-64-64-1").settings, "training.epochs=1", f"data.data_path={small_history}"]
    _timed(1, "train", tmp_path / "first", *words)  # may build the kernel
    members_s, launches_s = [], []
    for number in range(2):
        few_s, many_s = (
            _timed(1, "ensemble", tmp_path / f"{number}_{members}", *words, f"ensemble.members={members}")[1]
            for members in (2, 34)
        )
        members_s.append((many_s - few_s) / 32)
        launches_s.append(_timed(1, "train", tmp_path / f"alone{number}", *words)[1])
    last = tmp_path / "1_34" / "members" / "0033"
    assert {"run_record.json", "statistics.json", "logs", "config.yaml", "checkpoints"} <= {
        path.name for path in last.iterdir()
    }
    member_s, launch_s = min(members_s), min(launches_s)
    with capsys.disabled():
        print(f"\na member of one epoch: {1e3 * member_s:.1f} ms of processor time, its launch {launch_s:.2f} s")
    assert member_s < launch_s / 60  # 1 / 150, on a machine with ten programs on its two cores


def test_the_command(tmp_path: Path) -> None:
    words = ["--members", "3", "--epochs", "2", "--alone", "1", "--ranks", "1", "--network", "7-8-1"]
    words += ["--rounds", "1", "--json", "f.json"]
    done = launch(["-m", "mpitrain", "bench", "ensemble", *words], cwd=tmp_path, timeout_s=300.0)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "f.json").read_text())
    assert record["case"] == {"network": "7-8-1", "members": 3, "epochs": 2, "ranks": 1}
    assert record["figures"].keys() == {"wall_over_ideal", "launches_over_wall", "beyond_training_ms_a_member"}
    baselines_s = record["times"].pop("baselines_s")
    assert "loop" in baselines_s
    assert all(value > 0 for value in (*record["times"].values(), *baselines_s.values()))
    assert "a launch for each (1 measured)" in done.stdout
