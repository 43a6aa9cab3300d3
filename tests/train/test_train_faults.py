"""Whatever happens to one rank, every process of the job is gone within seconds, and one line says what happened."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Finished, losses_of, train
from job_processes import start_training
from many_runs import run_many

# Runs the command with a fault on rank RANK before optimiser step STEP; the file FAULT_AT tells when.
FAULTY_PROGRAM = """
import os, signal, sys, time
from pathlib import Path

kind, rank, step_number, fault_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
from mpitrain.cli.main import main
from mpitrain.errors import DataError
from mpitrain.train.trainer import Trainer

def fail():
    fault_at.write_text(repr(time.time()))
    if kind == "bug": raise ZeroDivisionError("injected")
    if kind == "our error": raise DataError("injected")
    if kind == "sys.exit": sys.exit(3)
    if kind == "sys.exit(0)": sys.exit(0)
    if kind == "os._exit": os._exit(3)
    if kind == "interrupt": raise KeyboardInterrupt
    os.kill(os.getpid(), getattr(signal, kind))

fit = Trainer.fit
def faulty_fit(self):
    take_steps = self._engine.take_steps
    def faulty_steps(first_step, num_steps, *arguments):
        if self._ranks.rank == rank and self.state.global_step == step_number: fail()
        return take_steps(first_step, 1, *arguments)
    self._engine.take_steps = faulty_steps
    fit(self)
Trainer.fit = faulty_fit
sys.exit(main(sys.argv[5:]))
"""

# What one rank does, the job's exit code (None: the launcher's, not 0), and what our one line says (None: nothing).
FAULTS = {
    "bug": (1, "ZeroDivisionError: injected"),
    "our error": (2, "injected"),
    "sys.exit": (1, "SystemExit: 3"),
    "sys.exit(0)": (1, "SystemExit: 0"),
    "interrupt": (1, "interrupted"),
    "os._exit": (None, None),
    "SIGKILL": (None, None),
    "SIGSEGV": (None, None),
}


def endless(small_history: Path) -> list[str]:
    return [f"data.data_path={small_history}", "training.epochs=1000000", "training.save_interval=1"]


@pytest.fixture
def inject(small_history: Path, tmp_path: Path) -> Callable[[str, int, int, int], tuple[Finished, Path]]:
    """Run 4 ranks with a fault on one; fail unless every process is gone soon after it."""
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY_PROGRAM)

    def run(kind: str, rank: int, step: int, number: int) -> tuple[Finished, Path]:
        folder = tmp_path / f"try-{number}"
        folder.mkdir()
        fault_at = folder / "fault_at"
        words = [str(program), kind, str(rank), str(step), str(fault_at)]
        job = start_training(4, folder / "run", endless(small_history), words)
        job.wait_for(lambda: bool((folder / "run" / "config.yaml").exists()))
        done = job.wait()
        job.wait_until_gone()
        return done, folder / "run"

    return run


def test_a_bug_on_one_rank_ends_all_with_one_line(
    inject: Callable[[str, int, int, int], tuple[Finished, Path]],
) -> None:
    check_one_line("bug", 2, *inject("bug", 2, 7, 0))


@pytest.mark.lab
@pytest.mark.slow
def test_an_exception_on_one_rank_ends_all_with_one_line(
    inject: Callable[[str, int, int, int], tuple[Finished, Path]], tries: Callable[[int], int]
) -> None:
    draw, speaking = random.Random(5), [kind for kind, (_, what) in FAULTS.items() if what is not None]
    for number in range(tries(20)):
        kind, rank = speaking[number % len(speaking)], draw.randrange(4)
        check_one_line(kind, rank, *inject(kind, rank, draw.randrange(40), number))


def check_one_line(kind: str, rank: int, done: Finished, folder: Path) -> None:
    code, what = FAULTS[kind]
    assert done.returncode == code, done.stderr
    (line,) = done.our_lines
    traceback = folder / "logs" / "failure.txt"
    assert line == f"mpitrain: error: rank {rank} on {socket.gethostname()}: {what} (traceback in {traceback})"
    assert "Traceback" not in done.stderr
    assert "in faulty_step" in traceback.read_text()


@pytest.mark.lab
@pytest.mark.slow
def test_a_rank_that_vanishes_takes_all_with_it(
    inject: Callable[[str, int, int, int], tuple[Finished, Path]], tries: Callable[[int], int]
) -> None:
    draw, silent = random.Random(6), [kind for kind, (_, what) in FAULTS.items() if what is None]
    for number in range(tries(20)):
        kind = silent[number % len(silent)]
        done, _ = inject(kind, draw.randrange(4), draw.randrange(40), number)
        assert done.returncode != 0
        # For a rank killed from outside, the launcher's message counts.
        assert re.search(r"exit code|signal|terminat|killed", done.stdout + done.stderr, re.IGNORECASE)
        assert "Traceback" not in done.stderr


@pytest.mark.lab
@pytest.mark.slow
def test_kill_9_from_outside_ends_all_and_the_run_can_be_resumed(
    small_history: Path, tmp_path: Path, tries: Callable[[int], int]
) -> None:
    draw, folders = random.Random(7), []
    for number in range(tries(20)):
        folders.append(tmp_path / f"try-{number}" / "run")
        folders[-1].parent.mkdir()
        job = start_training(4, folders[-1], endless(small_history))
        job.wait_for(lambda: any(folders[-1].glob("checkpoints/step-*/commit.json")))
        time.sleep(draw.uniform(0, 0.3))
        pid = job.pid_of_rank(draw.randrange(4))
        job.processes()
        os.kill(pid, signal.SIGKILL)
        done = job.wait()
        job.wait_until_gone()
        assert done.returncode != 0
        assert re.search(r"exit code|signal|terminat|killed", done.stdout + done.stderr, re.IGNORECASE)
        assert "Traceback" not in done.stderr
    _assert_all_resume(tmp_path, small_history, folders)


def _assert_all_resume(tmp_path: Path, small_history: Path, folders: list[Path]) -> None:
    records = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in folders]
    last_epoch = f"training.epochs={max(records) + 2}"
    whole = ["train", f"output.model_dir={tmp_path / 'whole'}", f"data.data_path={small_history}", last_epoch]
    jobs = [["train", f"output.model_dir={folder}", "--resume", last_epoch] for folder in folders]
    for outcome in run_many(tmp_path / "resumed", None, [whole, *jobs]):
        assert outcome.codes == [0], outcome.stderr
    for folder in folders:
        assert losses_of(folder) == losses_of(tmp_path / "whole")
        assert _weights_line(folder) == _weights_line(tmp_path / "whole")


def _weights_line(folder: Path) -> str:
    found = re.search(r"\b[0-9a-f]{64}\b", (folder / "report.html").read_text())
    assert found
    return found[0]


# Makes the training samples that rank RANK owns NaN, behind every check: the loss is not finite because of one rank.
POISONED_PROGRAM = """
import sys
from mpitrain.data import open_dataset
distribute = open_dataset.distribute
def poisoned(samples, ranks, *arguments):
    data = distribute(samples, ranks, *arguments)
    if ranks.rank == int(rank):
        for own in data.training: own.inputs[...] = float("nan")
    return data
open_dataset.distribute = poisoned
rank = sys.argv.pop(1)
from mpitrain.cli.main import main
sys.exit(main())
"""


def test_a_loss_that_is_not_finite_on_one_rank_names_it(small_history: Path, tmp_path: Path) -> None:
    program = tmp_path / "poisoned.py"
    program.write_text(POISONED_PROGRAM)
    job = start_training(4, tmp_path / "run", endless(small_history), [str(program), "2"])
    done = job.wait()
    assert done.returncode == 4, done.stderr
    (line,) = done.our_lines
    assert re.match(
        r"mpitrain: error: the loss became nan at step 1, epoch 1 \(rank 2 on \S+, virtual ranks \[4, 5\]\)", line
    )
    assert "lower training.optimizer.learning_rate" in line
    assert "Traceback" not in done.stderr
    # All ranks agree on it: nobody needs to abort the others.
    assert "MPI_Abort" not in done.stderr


HUGE = "training.optimizer.learning_rate=1e30"
DIVERGING = {
    "in the first epoch": (["training.epochs=3"], r"the loss became nan at step 2, epoch 1 \("),
    "in validation": (
        ["training.epochs=1", "training.global_batch_size=full"],
        "the validation loss became nan after step 1",
    ),
    "at the very end": (
        ["training.epochs=1", "training.global_batch_size=full", "data.validation_split=0"],
        "the trained weights give predictions that are not finite",
    ),
    "in reference": (["training.epochs=3", "semantics=reference"], r"the loss became nan at step 2, epoch 2 \("),
}


def test_divergence_is_exit_code_4_and_one_line(small_history: Path, tmp_path: Path) -> None:
    outcomes = run_many(tmp_path / "logs", 2, [
        ["train", f"output.model_dir={tmp_path / name}", f"data.data_path={small_history}", HUGE, *settings]
        for name, (settings, _) in DIVERGING.items()
    ])  # fmt: skip
    for (name, (_, what)), outcome in zip(DIVERGING.items(), outcomes, strict=True):
        assert outcome.codes == [4, 4], f"{name}: {outcome.stderr}"
        (line,) = outcome.our_lines
        assert re.search(what, line), line
        assert "Traceback" not in outcome.stderr
        assert not (tmp_path / name / "model.pt").exists()
        records = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        assert all("NaN" not in json.dumps(json.loads(record)) for record in records)


@pytest.mark.lab
def test_divergence_ends_the_process_with_exit_code_4(small_history: Path, tmp_path: Path) -> None:
    done = train(2, tmp_path / "run", f"data.data_path={small_history}", "training.epochs=2", HUGE)
    assert done.returncode == 4, done.stderr
    assert len(done.our_lines) == 1
    assert "Traceback" not in done.stderr
