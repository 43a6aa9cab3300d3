"""One evaluation of a network: errors in units, losses, what is no better than the mean; parts add up."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.cli.main import main
from mpitrain.config import TrainingSection
from mpitrain.data import Microbatch
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.inference.quality.evaluation import Evaluator, together
from mpitrain.train.losses.array_loss import ArrayLoss

# What is learnt is the logarithm of the first target; the second is answered by 0, its mean is 1.
LOG: Any = SimpleNamespace(
    learnt=lambda inputs: np.concatenate([inputs, 0 * inputs], axis=1),
    physical=lambda inputs: np.concatenate([np.exp(inputs), 0 * inputs], axis=1),
    restore=lambda learnt: np.stack([np.exp(learnt[:, 0]), learnt[:, 1]], axis=1),
    jacobian=lambda inputs: np.stack([np.exp(inputs), 0 * inputs], axis=1),
)
X = np.linspace(0.0, 2.0, 41)[:, None]


def samples(targets: np.ndarray, rows: slice = slice(None), weights: np.ndarray | None = None) -> VirtualRankSamples:
    weights = np.ones((len(X), 1)) if weights is None else weights
    padded = [np.concatenate([one[rows], np.zeros((1, *one.shape[1:]))]) for one in (X, targets, weights)]
    return VirtualRankSamples(0, *padded, np.arange(len(X))[rows])


def learnt_evaluator() -> Evaluator:
    return Evaluator(LOG, ArrayLoss(TrainingSection().loss_function), np.array([1.0, 1.0]))


def test_errors_are_in_units_and_losses_of_what_is_learnt() -> None:
    other = np.random.default_rng(0).normal(1.0, 0.5, X.shape)
    found = learnt_evaluator().evaluate(samples(np.concatenate([X + 0.1, other], axis=1)), True, 9, 5)
    assert found is not None
    first, second = (one.errors for one in found.targets)
    assert first.rmse == pytest.approx(np.sqrt(np.mean((np.exp(X) - np.exp(X + 0.1)) ** 2)))
    assert second.bias == pytest.approx(-other.mean())
    assert found.mean_of("loss") == pytest.approx((0.01 + np.mean(other**2)) / 2)
    assert found.mean_of("loss_of_mean") == pytest.approx(np.mean([(X + 0.1 - 1) ** 2, (other - 1) ** 2]))
    assert found.no_better(["y", "z"]) == ("z",)
    assert found.no_better(["y", "z"][:1]) == ()
    assert np.allclose(found.pairs.truth, np.stack([np.exp(X + 0.1), other], axis=1)[::5, :, 0])
    assert found.pairs.index.tolist() == list(range(0, 41, 5))
    assert found.derivatives is not None
    assert found.derivatives.mean[1, 0] == 0


def test_without_a_loss_targets_are_in_units() -> None:
    found = Evaluator(LOG).evaluate(samples(np.concatenate([np.exp(X), 0 * X], axis=1)), True, 100)
    assert found is not None
    assert [one.errors.rmse for one in found.targets] == [0.0, 0.0]
    assert np.array_equal(found.pairs.truth[:, 0], np.exp(X[:, 0]))
    assert found.mean_of("loss") is None


def test_parts_add_up_and_weights_count() -> None:
    targets, weights = np.concatenate([X + X**2, X], axis=1), np.where(X > 1, 3.0, 0.0)
    evaluator = learnt_evaluator()
    parts = [evaluator.evaluate(samples(targets, rows, weights), True) for rows in (slice(0, 30), slice(30, None))]
    added = together([part for part in parts if part is not None])
    whole = evaluator.evaluate(samples(targets, weights=weights), True)
    assert whole is not None
    for one, other in zip(added.targets, whole.targets, strict=True):
        assert one.errors.count == other.errors.count == int((X > 1).sum())
        for key in ("bias", "rmse", "r2"):
            assert getattr(one.errors, key) == pytest.approx(getattr(other.errors, key), rel=1e-12)
    assert added.mean_of("loss") == pytest.approx(whole.mean_of("loss"))


def test_an_infinite_answer_is_an_infinite_error() -> None:
    far = Evaluator(SimpleNamespace(physical=lambda inputs: np.where(inputs > 1.9, np.inf, inputs)))  # type: ignore[arg-type]
    found = far.evaluate(samples(X), True)
    assert found is not None
    assert found.targets[0].errors.rmse == np.inf
    assert not found.is_finite


def test_only_what_is_asked_for_keeps_places() -> None:
    targets = np.concatenate([X, X], axis=1)
    places = [learnt_evaluator().evaluate(samples(targets), True, with_places=asked) for asked in (False, True)]
    assert [one is not None and one.places is not None for one in places] == [False, True]
    assert isinstance(next(samples(targets).blocks()), Microbatch)


def test_the_page_made_anew_has_the_skill_of_a_transformed_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(1).uniform(0, 2, 400)
    (tmp_path / "f.csv").write_text("x,y\n" + "".join(f"{one},{np.exp(2 * one)}\n" for one in x))
    words = ["variables.input_variables=[x]", "variables.output_variables=[y]", "model.output_transforms={y: log}"]
    assert main(["train", "--data", "f.csv", *words, "--output", "run", "--epochs", "30"]) == 0
    assert main(["report", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    (row,) = re.findall(r"<td>y</td><td></td><td>[^<]*</td><td>([^<]*)</td><td>([^<]*)</td>", page)
    printed = re.search(r"y: RMSE ([\d.e+-]+), ", capsys.readouterr().out)
    assert printed is not None
    assert float(row[0]) == pytest.approx(float(printed[1]), rel=0.5)
    assert float(row[1]) > 0.99
