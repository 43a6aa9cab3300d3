"""A run that is stopped and resumed, on any number of ranks, is the run that was never stopped, bit for bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import train
from job_processes import RunningJob, start_training
from many_runs import Outcome, run_many

from mpitrain.comm.arrays import host_array
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.train.checkpoint.format import TENSORS
from mpitrain.train.checkpoint.store import load_checkpoint
from mpitrain.train.run_folder import RUN


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Every record of a run, without its wall times."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("wall_time_s", "timing")} for record in records]


def bits_of(tensors: dict[str, Any]) -> dict[str, bytes]:
    return {name: host_array(one).tobytes() for name, one in tensors.items()}


def assert_same_run(resumed: Path, uninterrupted: Path) -> None:
    """Compare the exported weights, all that the last checkpoint holds, and every record of the metrics."""
    assert metrics_of(resumed) == metrics_of(uninterrupted)
    models = [bits_of(dict(load_and_run_code(folder / "model.pt").state_dict())) for folder in (resumed, uninterrupted)]
    assert models[0] == models[1]
    newest = [load_checkpoint(max((folder / "checkpoints").glob("step-*"))) for folder in (resumed, uninterrupted)]
    assert bits_of(newest[0].tensors) == bits_of(newest[1].tensors)
    states = [{**one.state, RUN: None} for one in newest]  # each launch has an identity of its own
    assert states[0] == states[1]


# How the ranks change from stage to stage: the first stage starts, every other one resumes, the last one finishes.
STAGES = [(2, 2), (2, 3, 1), (2, 1), (4, 2), (1, 3, 4)]
VARIANTS = [
    ("training.scheduler.type=cosine", "training.early_stopping_patience=3", "model.name=mlp", "model.layer_norm=true"),
    ("training.scheduler.type=step", "training.scheduler.step_size=2", "training.global_batch_size=100"),
    ("training.global_batch_size=full", "training.epochs=20", "model.hidden_activation=gelu"),
    ("training.dtype=float64", "data.validation_split=0", "training.optimizer.weight_decay=0.01"),
    ("training.global_batch_size=24", "training.shuffle=false", "training.save_interval=1", "output.weights=final"),
]


@dataclass
class Try:
    """One run, stopped at random steps."""

    folder: Path
    settings: list[str]
    stages: tuple[int, ...]
    stops: list[int] = field(default_factory=list)

    def job(self, stage: int) -> list[str]:
        limit = f"training.max_steps={self.stops[stage] if stage < len(self.stops) else 'null'}"
        if stage == 0:
            return ["train", f"output.model_dir={self.folder}", *self.settings, limit]
        return ["train", f"output.model_dir={self.folder}", "--resume", limit]

    def check(self, stage: int, outcome: Outcome) -> None:
        finished = stage == len(self.stages) - 1
        assert outcome.codes == [0 if finished else 5] * self.stages[stage], outcome.stderr
        if not finished:
            (line,) = outcome.our_lines
            step = self.stops[stage]
            assert line.startswith(f"mpitrain: stopped by training.max_steps={step} at step {step}, epoch "), line
            assert line.endswith("; a checkpoint is saved: continue with --resume")


@pytest.mark.slow
def test_stopped_anywhere_and_resumed_on_any_ranks_gives_the_same_bits(
    small_history: Path, tmp_path: Path, tries: Callable[[int], int]
) -> None:
    draw = random.Random(4)
    settings = ["training.epochs=5", f"data.data_path={small_history}"]
    runs = [
        Try(tmp_path / f"run-{number}", [*settings, *VARIANTS[number % 5], f"seed={number}"], STAGES[number * 3 % 5])
        for number in range(tries(20))
    ]
    whole = run_many(tmp_path / "whole", None, [
        ["train", f"output.model_dir={run.folder}-whole", *run.settings] for run in runs
    ])  # fmt: skip
    for run, outcome in zip(runs, whole, strict=True):
        assert outcome.codes == [0], outcome.stderr
        run.stops = _draw_stops(draw, metrics_of(Path(f"{run.folder}-whole")), len(run.stages) - 1)
    for stage in range(max(len(run.stages) for run in runs)):
        _run_stage(tmp_path, [run for run in runs if len(run.stages) > stage], stage)
    for run in runs:
        assert_same_run(run.folder, Path(f"{run.folder}-whole"))


def _draw_stops(draw: random.Random, records: list[dict[str, Any]], number: int) -> list[int]:
    """Draw steps to stop at, three of four inside an epoch: there the losses so far must survive too."""
    steps_per_epoch, last = records[0]["step"], records[-1]["step"]
    inside = [step for step in range(1, last) if step % steps_per_epoch]
    return sorted(draw.sample(inside if inside and draw.random() < 0.75 else range(1, last), number))


def _run_stage(tmp_path: Path, runs: list[Try], stage: int) -> None:
    for num_ranks in sorted({run.stages[stage] for run in runs}):
        group = [run for run in runs if run.stages[stage] == num_ranks]
        outcomes = run_many(
            tmp_path / f"stage-{stage}-{num_ranks}", num_ranks if num_ranks > 1 else None,
            [run.job(stage) for run in group],
        )  # fmt: skip
        for run, outcome in zip(group, outcomes, strict=True):
            run.check(stage, outcome)


@pytest.fixture(scope="module")
def source(small_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs to start from, all made in one launch."""
    folder = tmp_path_factory.mktemp("source")
    base = ["train", f"data.data_path={small_history}", "training.save_interval=1"]
    reference = [*base, "semantics=reference"]
    patience = [
        *base,
        "training.early_stopping_patience=2",
        "training.optimizer.learning_rate=0.3",
        "training.epochs=30",
    ]
    jobs = {
        "four epochs": [*base, "training.epochs=4"],
        "two epochs": [*base, "training.epochs=2"],
        "stopped": [*base, "training.epochs=4", "training.max_steps=27"],
        "reference": [*reference, "training.epochs=12"],
        "reference, stopped": [*reference, "training.epochs=12", "training.max_steps=7"],
        "patience": patience,
    }
    outcomes = run_many(
        folder / "logs", None, [[*job, f"output.model_dir={folder / name}"] for name, job in jobs.items()]
    )
    assert [outcome.codes for outcome in outcomes] == [[5] if "stopped" in name else [0] for name in jobs]
    return folder


@pytest.fixture(scope="module")
def resumed(source: Path) -> dict[str, Outcome]:
    """The stopped runs, damaged or not, and finished runs with more epochs: all resumed in one launch."""
    damaged = {"one damaged": 1, "two damaged": 2}
    for name, number in damaged.items():
        shutil.copytree(source / "stopped", source / name)
        for checkpoint in sorted((source / name / "checkpoints").glob("step-*"))[-number:]:
            whole = bytearray((checkpoint / TENSORS).read_bytes())
            whole[-1] ^= 1
            (checkpoint / TENSORS).write_bytes(whole)
    shutil.copytree(source / "two epochs", source / "more epochs")
    shutil.copytree(source / "patience", source / "patience, again")
    # As if killed in its last epoch: the checkpoint before it has seen one epoch without a better loss, of the two.
    shutil.copytree(source / "patience", source / "patience, stopped")
    shutil.rmtree(max((source / "patience, stopped" / "checkpoints").glob("step-*")))
    shutil.copytree(source / "two epochs", source / "edited")
    edited = source / "edited" / "config.yaml"
    edited.write_text(edited.read_text().replace("learning_rate: 0.001\n", "learning_rate: 0.002\n"))
    again = "training.max_steps=null"
    jobs = {
        "edited": ["training.epochs=3"],
        "one damaged": [again],
        "two damaged": [again],
        "more epochs": ["training.epochs=4"],
        "reference, stopped": [again],
        "patience, stopped": [again],
        "patience, again": [again],
    }
    outcomes = run_many(source / "resumed", None, [
        ["train", f"output.model_dir={source / name}", "--resume", *job] for name, job in jobs.items()
    ])  # fmt: skip
    return dict(zip(jobs, outcomes, strict=True))


def test_a_damaged_newest_checkpoint_is_passed_over_and_named(source: Path, resumed: dict[str, Outcome]) -> None:
    steps_per_epoch = metrics_of(source / "four epochs")[0]["step"]
    stopped_at, epoch_ends = 27, [3 * steps_per_epoch, 2 * steps_per_epoch]
    assert epoch_ends[0] < stopped_at < 4 * steps_per_epoch
    for number, name in enumerate(("one damaged", "two damaged")):
        outcome = resumed[name]
        assert outcome.codes == [0], outcome.stderr
        said = re.findall(r"note: .*step-0*(\d+): damaged .*; falling back to the one before\n", outcome.stderr)
        assert list(map(int, said)) == [stopped_at, *epoch_ends][: number + 1]
        assert f"resuming from {source / name}/checkpoints/step-{epoch_ends[number]:08d}\n" in outcome.stdout
        # Epoch 3's record, which the run that was stopped had already written, is there once.
        assert_same_run(source / name, source / "four epochs")


@pytest.mark.lab
def test_a_finished_run_goes_on_with_more_epochs(source: Path, resumed: dict[str, Outcome]) -> None:
    assert resumed["more epochs"].codes == [0]
    assert_same_run(source / "more epochs", source / "four epochs")


@pytest.mark.lab
def test_a_setting_edited_in_the_folder_is_said(resumed: dict[str, Outcome]) -> None:
    assert resumed["edited"].codes == [0]
    assert "training.optimizer.learning_rate changed from 0.001 to 0.002: " in resumed["edited"].stderr
    assert "changed from" not in resumed["more epochs"].stderr


@pytest.mark.lab
def test_reference_semantics_resume_bit_for_bit(source: Path, resumed: dict[str, Outcome]) -> None:
    assert resumed["reference, stopped"].codes == [0]
    assert_same_run(source / "reference, stopped", source / "reference")


@pytest.mark.lab
def test_patience_survives_the_resume(source: Path, resumed: dict[str, Outcome]) -> None:
    records = metrics_of(source / "patience")
    assert 3 <= len(records) < 30, "the run must stop early for this test to say anything"
    losses = [record["validation_loss"] for record in records]
    assert min(losses) == losses[-3]
    assert resumed["patience, stopped"].codes == [0]
    assert_same_run(source / "patience, stopped", source / "patience")
    # Resumed after it stopped early, it stays stopped.
    assert resumed["patience, again"].codes == [0]
    assert_same_run(source / "patience, again", source / "patience")


def _signal_in_training(job: RunningJob, folder: Path, rank: int, number: signal.Signals, after_epochs: int) -> None:
    job.wait_for(lambda: (folder / "metrics.jsonl").exists() and len(metrics_of(folder)) >= after_epochs)
    os.kill(job.pid_of_rank(rank), number)


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(small_history: Path, tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", [f"data.data_path={small_history}", "training.epochs=1000000"]
    for rank, number, flag in ((2, signal.SIGTERM, []), (1, signal.SIGUSR1, ["--resume"])):
        finished_before = len(metrics_of(folder)) if flag else 0
        job = start_training(4, folder, [*settings, *flag])
        _signal_in_training(job, folder, rank, number, finished_before + 3)
        done = job.wait()
        assert done.returncode == 5, done.stderr
        (line,) = done.our_lines
        assert re.match(rf"mpitrain: stopped by {number.name} at step \d+, epoch \d+; a checkpoint is saved", line), (
            line
        )
        assert "Traceback" not in done.stderr
    last_epoch = len(metrics_of(folder)) + 2
    done = train(2, folder, "--resume", f"training.epochs={last_epoch}")
    assert done.returncode == 0, done.stderr
    (whole,) = run_many(tmp_path / "logs", None, [
        ["train", f"output.model_dir={tmp_path / 'whole'}", *settings[:1], f"training.epochs={last_epoch}"]
    ])  # fmt: skip
    assert whole.codes == [0]
    assert_same_run(folder, tmp_path / "whole")


def test_first_weights_of_a_run_that_goes_on_are_said_to_be_of_no_effect(tmp_path: Path) -> None:
    rows = "".join(f"{number % 7},{number % 7 * 2}\n" for number in range(60))
    (tmp_path / "rows.csv").write_text(f"a,b\n{rows}")
    names = ("variables.input_variables=[a]", "variables.output_variables=[b]", "model.hidden_size=4")
    run, given = f"output.model_dir={tmp_path / 'run'}", f"model.initial_weights={tmp_path / 'rows.csv'}"
    jobs = [
        ["train", "--data", str(tmp_path / "rows.csv"), run, *names, "training.epochs=1"],
        ["train", "--resume", str(tmp_path / "run"), "training.epochs=2"],
        ["train", "--resume", str(tmp_path / "run"), "training.epochs=3", given],
    ]
    outcomes = run_many(tmp_path / "logs", 2, jobs)
    assert [outcome.codes for outcome in outcomes] == [[0, 0]] * 3
    said = (
        "note: model.initial_weights: has no effect with --resume, which uses the checkpoint's weights; leave it out\n"
    )
    assert [outcome.stderr.count(said) for outcome in outcomes] == [0, 0, 1]
