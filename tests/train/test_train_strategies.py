"""The public command on two ranks: other trainers' distributed section trains, and what cannot be is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import TESTS, losses_of
from many_runs import Outcome, run_many

OLDER = TESTS / "data" / "older_configs" / "distributed.yaml"
SMALL = ("training.epochs=2", "output.progress=lines")
RUNS = {
    "older section": (str(OLDER),),
    "ddp over gloo": ("distributed.strategy=ddp", "compute.backend=gloo", "training.global_batch_size=64"),
    "ddp, scheduled": (
        "distributed.strategy=ddp", "training.scheduler.type=step", "training.scheduler.step_size=1",
        "training.learning_rate_scaling=linear", "training.learning_rate_scaling_by=world_size",
    ),
}  # fmt: skip
REFUSED = {
    "single": (
        "distributed.strategy=single",
        3,
        r"distributed\.strategy=single: needs one process, this run has 2 ranks",
    ),
    "dp": (
        "distributed.strategy=dp",
        3,
        r"distributed\.strategy=dp: needs one process, this run has 2 ranks; start one",
    ),
    "unet on points": ("model.name=unet", 2, r"model\.name=unet: takes fields, the samples are points; set data\.sam"),
    "mlp on fields": (
        "model.name=mlp data.samples=fields",
        2,
        r"model\.name=mlp: takes points, the samples are fields",
    ),
    "unknown optimiser": ("training.optimizer.type=lion", 2, r"training\.optimizer\.type=lion: .*adam"),
    "batch larger than the data": ("training.global_batch_size=9999999", 2, r"9999999: there are only \d+ training"),
    "accumulation": ("training.gradient_accumulation_steps=7", 2, r"does not divide the 8 rows"),
    "compiled, wide unet": (
        "model.name=unet model.hidden_size=129 data.samples=fields training.engine=compiled "
        "training.global_batch_size=full",
        2,
        r"compiled: a layer has more than 128 channels",
    ),
    "weights that differ": ("model.name=networks_of_users:DifferentOnEachRank", 2, r"parameters differ between ranks"),
    "wrong shape": (
        "model.name=networks_of_users:OneNumberASample",
        2,
        r"it returns \(\d+,\); return shape \(\d+, 1\)",
    ),
}


@pytest.fixture(scope="module")
def outcomes(small_history: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Outcome]]:
    """Every run and what became of it, all in one launch."""
    folder = tmp_path_factory.mktemp("strategies")
    settings = RUNS | {name: tuple(words.split()) for name, (words, _, _) in REFUSED.items()}
    jobs = [
        ["train", *own, *SMALL, f"data.data_path={small_history}", f"output.model_dir={folder / name}"]
        for name, own in settings.items()
    ]
    done = run_many(folder / "logs", 2, jobs)
    return {name: (folder / name, outcome) for name, outcome in zip(settings, done, strict=True)}


@pytest.mark.lab
@pytest.mark.parametrize("name", RUNS)
def test_it_trains(name: str, outcomes: dict[str, tuple[Path, Outcome]]) -> None:
    folder, outcome = outcomes[name]
    assert outcome.codes == [0, 0], outcome.stderr
    (first, _), (last, validation) = losses_of(folder)
    assert last < first
    assert validation is not None
    assert (folder / "model.pt").exists()


@pytest.mark.lab
def test_the_older_section_says_what_it_means_here(outcomes: dict[str, tuple[Path, Outcome]]) -> None:
    _, outcome = outcomes["older section"]
    assert "distributed.backend=nccl: no GPU here, so mpi is used" in outcome.stderr
    assert "distributed.strategy=ddp: implies training.reduction=any" in outcome.stderr
    assert "training.batch_size=2 is per rank (global batch 4)" in outcome.stderr
    assert "not used yet" not in outcome.stderr


@pytest.mark.lab
def test_learning_rates_are_recorded(outcomes: dict[str, tuple[Path, Outcome]]) -> None:
    folder, _ = outcomes["ddp, scheduled"]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["learning_rate"] for record in records] == pytest.approx([0.002, 0.001], rel=1e-14)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_one_line(name: str, outcomes: dict[str, tuple[Path, Outcome]]) -> None:
    folder, outcome = outcomes[name]
    _, code, message = REFUSED[name]
    assert outcome.codes == [code] * 2, outcome.stderr
    (line,) = outcome.our_lines
    assert line.startswith("mpitrain: error: ")
    assert re.search(message, line), line
    assert "Traceback" not in outcome.stderr
    assert not folder.exists()
