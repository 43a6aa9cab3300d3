"""Runs of the command on two nodes that MPICH believes in: the bits of one rank, and faults in the middle of a call."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, Finished, losses_of, train
from job_processes import start_training
from many_runs import run_many

from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.checkpoint.store import CheckpointStore

SETTINGS = ("training.global_batch_size=8", "training.save_interval=1", "seed=5", "model.name=mlp",
            "model.hidden_layers=2", "model.hidden_size=48")  # fmt: skip
SECONDS_TO_END = 10.0
STEPS_BEFORE = 20
# Sends rank RANK a signal in the middle of a call of the kernel, after a checkpoint; the file FAULT_AT tells when.
FAULTY_PROGRAM = f"""
import os, signal, sys, threading, time
from pathlib import Path

number, rank, fault_at = getattr(signal, sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
from mpitrain.cli.main import main
from mpitrain.train.trainer import Trainer

def watch(ranks):
    notes = ranks.cpu.notes
    while True:
        in_call = notes.steps_in_call.value
        if notes.collective == "take_steps" and in_call >= {STEPS_BEFORE} and notes.step_at_call > 0:
            fault_at.write_text(f"{{in_call}} {{time.time()}}")
            os.kill(os.getpid(), number)
            if number != signal.SIGSTOP: return
            time.sleep(1000)
        time.sleep(1e-5)

fit = Trainer.fit
def faulty_fit(self):
    if self._ranks.rank == rank: threading.Thread(target=watch, args=(self._ranks,), daemon=True).start()
    fit(self)
Trainer.fit = faulty_fit
sys.exit(main(sys.argv[4:]))
"""
HOST = socket.gethostname()
Result = tuple[str, list[tuple[float, float | None]]]


@pytest.fixture(autouse=True)
def _two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIR_CVAR_NUM_CLIQUES", "2")
    monkeypatch.setenv("MPIR_CVAR_CLIQUES_BY_BLOCK", "1")
    monkeypatch.setenv("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")


def result_of(folder: Path) -> Result:
    checkpoint, _ = CheckpointStore(folder / "checkpoints").load_latest()
    return weights_sha256(dict(sorted(checkpoint.tensors.items()))), losses_of(folder)


def run_with_fault(number: str, rank: int, run: Path, history: Path, *settings: str) -> tuple[Finished, float]:
    """Start an endless run of 4 ranks, send one a signal in mid-call; return its end, and the seconds until then."""
    run.parent.mkdir()
    program, fault_at = run.parent / "faulty.py", run.parent / "fault_at"
    program.write_text(FAULTY_PROGRAM)
    words = [f"data.data_path={history}", *SETTINGS, "training.epochs=1000000", *settings]
    job = start_training(4, run, words, [str(program), number, str(rank), str(fault_at)])
    job.wait_for((run / "config.yaml").exists, timeout_s=TIMEOUT_S)
    done = job.wait(timeout_s=TIMEOUT_S)
    ended_s = time.time()
    job.wait_until_gone(timeout_s=SECONDS_TO_END)
    in_call, faulted_s = map(float, fault_at.read_text().split())
    assert in_call >= STEPS_BEFORE
    return done, ended_s - faulted_s


def assert_resumes_to_the_same(folder: Path, history: Path, run: Path) -> None:
    """On one rank, after what two nodes have left."""
    last_epoch = f"training.epochs={len(losses_of(run)) + 2}"
    jobs = [["train", f"output.model_dir={folder / 'whole'}", f"data.data_path={history}", *SETTINGS, last_epoch],
            ["train", f"output.model_dir={run}", "--resume", last_epoch]]  # fmt: skip
    for outcome in run_many(folder / "resumed", None, jobs):
        assert outcome.codes == [0], outcome.stderr
    assert result_of(run) == result_of(folder / "whole")


def test_two_nodes_train_to_the_bits_of_one_rank(small_history: Path, tmp_path: Path) -> None:
    def result(name: str, num_ranks: int | None, *settings: str) -> Result:
        words = [f"data.data_path={small_history}", *SETTINGS, "training.epochs=3"]
        done = train(num_ranks, tmp_path / name, *words, *settings)
        assert done.returncode == 0, done.stderr
        assert num_ranks is None or f"{num_ranks} ranks on 2 nodes" in done.stdout
        return result_of(tmp_path / name)

    alone = result("alone", None)
    assert [result(f"{count} ranks", count) for count in (2, 3, 4)] == [alone] * 3
    streamed = "data.streaming=true"
    assert result("streamed", 4, streamed) == result("streamed alone", None, streamed)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_kill_9_of_a_rank_ends_those_of_the_other_node(small_history: Path, tmp_path: Path, rank: int) -> None:
    """Rank 0 and 2 exchange for their nodes; rank 1 waits for the first of them."""
    run = tmp_path / "try" / "run"
    done, _ = run_with_fault("SIGKILL", rank, run, small_history)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if rank == 2:
        assert_resumes_to_the_same(tmp_path, small_history, run)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_stopped_rank_of_another_node_is_named(small_history: Path, tmp_path: Path, rank: int) -> None:
    timeout_s, run = 20.0, tmp_path / "try" / "run"
    done, _ = run_with_fault("SIGSTOP", rank, run, small_history, f"distributed.timeout={timeout_s:.1f}")
    assert done.returncode == 3, done.stderr
    (line,) = done.our_lines
    found = re.search(
        rf"waited \d+ s in take_steps \(collective \d+, step (\d+)\) for rank {rank} on {HOST} "
        r"\(process \d+(, \w+)*\), which has not",
        line,
    )
    assert found, line
    assert int(found[1]) >= STEPS_BEFORE


def test_a_stop_asked_on_another_node_leaves_a_checkpoint(small_history: Path, tmp_path: Path) -> None:
    run = tmp_path / "try" / "run"
    done, _ = run_with_fault("SIGTERM", 3, run, small_history)
    assert done.returncode == 5, done.stderr
    (line,) = done.our_lines
    assert "stopped by SIGTERM at step" in line
    assert_resumes_to_the_same(tmp_path, small_history, run)
