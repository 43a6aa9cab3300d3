"""A job that loses a node goes on with the nodes that are left, and ends with the bits of an uninterrupted run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import losses_of, train
from slurm_cluster import SlurmCluster, slurm, wait_until

from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.checkpoint.store import CheckpointStore

__all__ = ["slurm"]

TIMEOUT_S = 200.0
SETTINGS = ("training.epochs=300", "training.global_batch_size=64", "training.save_interval=1", "seed=5")


def command(history: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "mpitrain", "launch", *words, *SETTINGS, f"data.data_path={history}",
            "output.model_dir=run"]  # fmt: skip


def result_of(folder: Path) -> tuple[str, list[tuple[float, float | None]]]:
    checkpoint, _ = CheckpointStore(folder / "checkpoints").load_latest()
    return weights_sha256(dict(sorted(checkpoint.tensors.items()))), losses_of(folder)


def wait_for_checkpoints(run: Path, count: int = 3) -> None:
    wait_until(lambda: len(list(run.glob("checkpoints/step-*/commit.json"))) >= count, TIMEOUT_S, "checkpoints")


@pytest.fixture(scope="module")
def expected(
    small_history: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[tuple[float, float | None]]]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(2, folder, *SETTINGS, f"data.data_path={small_history}", timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return result_of(folder)


def test_all_processes_of_a_node_are_killed(
    slurm: SlurmCluster, small_history: Path, tmp_path: Path, expected: tuple[str, list[tuple[float, float | None]]]
) -> None:
    words = ["--scheduler", "slurm", "-N", "2", "--mpi", "pmi2", "--walltime", "00:05:00", "--submit", "--no-requeue"]
    sent = slurm.run(command(small_history, *words), cwd=tmp_path)
    assert sent.returncode == 0, sent.stderr
    job = int(sent.stdout.split()[-1])
    wait_for_checkpoints(tmp_path / "run")
    with slurm.lost_node("n2"):
        lost_s = time.monotonic()
        (log,) = tmp_path.glob(f"*{job}*.log")
        wait_until(lambda: "1 of 2 hosts answer" in log.read_text(), TIMEOUT_S, f"the restart: {log}")
        print(f"\nstarted again {time.monotonic() - lost_s:.1f} s after the loss")
        ended = slurm.wait_for_end(job, TIMEOUT_S)
    said = log.read_text()
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0"), said
    assert "restarting with --resume --take-over and 1 ranks on n1 (restarts left: 2)" in said
    assert result_of(tmp_path / "run") == expected


def test_the_first_node_is_lost_and_the_batch_script_with_it(
    slurm: SlurmCluster, small_history: Path, tmp_path: Path, expected: tuple[str, list[tuple[float, float | None]]]
) -> None:
    """Slurm alone keeps such a job, which was sent with --no-kill, on the other node until its time limit."""
    words = ["--scheduler", "slurm", "-N", "2", "--mpi", "pmi2", "--walltime", "00:05:00", "--requeue"]
    written = slurm.run(command(small_history, *words), cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    script = tmp_path / "job.sh"
    script.write_text(written.stdout)
    job = slurm.submit(script, cwd=tmp_path)
    wait_for_checkpoints(tmp_path / "run")
    with slurm.lost_node("n1"):
        wait_until(lambda: slurm.show_job(job)["Restarts"] == "1", TIMEOUT_S, "the requeue")
    assert slurm.show_job(job)["JobState"] == "PENDING", "it goes on before its node is back"
    ended = slurm.wait_for_end(job, TIMEOUT_S)
    (log,) = tmp_path.glob(f"*{job}*.log")
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    assert "n1, the first host, is lost: the job is requeued" in (tmp_path / f"logs/{job}_watch.log").read_text()
    said = "".join(path.read_text() for path in sorted((tmp_path / "logs").glob(f"{job}_node*.log")))
    assert "resuming from" in said
    assert result_of(tmp_path / "run") == expected


def test_a_local_run_starts_again_after_its_ranks_were_killed(
    small_history: Path, tmp_path: Path, expected: tuple[str, list[tuple[float, float | None]]]
) -> None:
    from conftest import launcher_environment

    words = command(small_history, "--scheduler", "local", "-n", "2", "--restarts", "3", "--submit")
    job = subprocess.Popen(words, cwd=tmp_path, env=launcher_environment(), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, start_new_session=True)  # fmt: skip
    try:
        wait_for_checkpoints(tmp_path / "run")
        os.kill(rank_1_of(tmp_path / "run"), signal.SIGKILL)
        said, _ = job.communicate(timeout=TIMEOUT_S)
    finally:
        job.kill()
    assert job.returncode == 0, said
    assert re.search(
        r"the run ended with exit code \d+: restarting with --resume --take-over \(restarts left: 2\)", said
    )
    (line,) = re.findall(r"mpitrain: error: .*", said)
    assert re.search(r"rank 1 on \S+ \(process \d+\) exited without an error message", line)
    assert result_of(tmp_path / "run") == expected


def rank_1_of(run: Path) -> int:
    return int(re.findall(r"rank 1 of \d+, process (\d+)", (run / "logs" / "rank-0001.log").read_text())[-1])


def test_a_wrong_input_is_not_tried_again(tmp_path: Path) -> None:
    from conftest import launch

    words = ["-m", "mpitrain", "launch", "--scheduler", "local", "-n", "1", "--restarts", "3", "--submit"]
    (tmp_path / "no.nc").write_text("")
    done = launch([*words, "data.data_path=no.nc", "output.model_dir=run"], cwd=tmp_path)
    assert done.returncode == 2
    assert "again" not in done.stdout
