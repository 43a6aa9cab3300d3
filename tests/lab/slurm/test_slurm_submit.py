"""`mpitrain launch --submit` to a real Slurm: the job runs, is warned, goes back into the queue, and ends the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import losses_of, train
from slurm_cluster import SlurmCluster, slurm, wait_until

from mpitrain.models.files.torchscript import load_and_run_code

__all__ = ["slurm"]

LAUNCH = (sys.executable, "-m", "mpitrain", "launch", "--scheduler", "slurm", "--mpi", "pmi2", "--submit")
LAUNCH_TIMEOUT_S = 200.0


@pytest.fixture
def settings(small_history: Path) -> list[str]:
    return ["training.epochs=400", "training.global_batch_size=64", "seed=5", f"data.data_path={small_history}"]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_submitted_job_is_warned_requeued_and_ends_the_same(
    slurm: SlurmCluster, settings: list[str], tmp_path: Path
) -> None:
    words = ["-N", "2", "--walltime", "00:05:00", "--signal-seconds", "60", "--requeue", *settings]
    sent = slurm.run([*LAUNCH, *words, "output.model_dir=run"], cwd=tmp_path)
    assert sent.returncode == 0, sent.stderr
    job = int(sent.stdout.split()[-1])
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: len(lines_of(metrics)) >= 3, LAUNCH_TIMEOUT_S, "three epochs")
    # What Slurm itself sends before the limit, to the batch shell alone; test_slurm_launches.py waits for a real limit.
    assert slurm.run(["scancel", "--batch", "--signal=USR1", str(job)]).returncode == 0
    wait_until(lambda: slurm.show_job(job)["Restarts"] == "1", 60.0, "the requeue")
    stopped_after = len(lines_of(metrics))
    assert stopped_after < 400, "the run ended before the warning came"
    assert any((tmp_path / "run" / "checkpoints").glob("step-*/commit.json"))
    ended = slurm.wait_for_end(job, LAUNCH_TIMEOUT_S)
    (log,) = tmp_path.glob(f"*{job}*.log")
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    assert "requeued to resume from the checkpoint" in log.read_text()
    said = "".join(path.read_text() for path in sorted((tmp_path / "logs").glob(f"{job}_node*.log")))
    assert "stopped by SIGUSR1" in said
    assert "resuming from" in said
    assert (tmp_path / "logs" / "latest_node0.log").resolve().exists()
    assert_same_result(tmp_path, settings)


def assert_same_result(folder: Path, settings: list[str]) -> None:
    whole = train(2, folder / "whole", *settings, timeout_s=LAUNCH_TIMEOUT_S)
    assert whole.returncode == 0, whole.stderr
    assert losses_of(folder / "run") == losses_of(folder / "whole")
    weights, expected = (load_and_run_code(folder / name / "model.pt").state_dict() for name in ("run", "whole"))
    assert weights.keys() == expected.keys()
    assert all(bool((weights[name] == expected[name]).all()) for name in expected)
