"""What a run's page tells of the network: skill, derivatives, settings in words."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.observe.page.derivatives import MOST_LISTED, Derivatives, DerivativeSums, render_derivatives
from mpitrain.observe.page.findings import Findings
from mpitrain.observe.page.pairs import Pairs
from mpitrain.observe.page.skill import ErrorSums, Skill
from mpitrain.observe.page.words import _listed, describe_settings
from mpitrain.observe.report import write_report

RANDOM = np.random.default_rng(3)
TARGETS = 280 + 8 * RANDOM.normal(size=1000)
ERRORS = 2 + 3 * RANDOM.normal(size=1000)


def sums_of(*parts: slice) -> ErrorSums:
    total = ErrorSums()
    for part in parts:
        total.merge(ErrorSums.of(TARGETS[part], ERRORS[part]))
    return total


@pytest.mark.parametrize("parts", [(slice(None),), (slice(300), slice(0), slice(300, 301), slice(301, None))])
def test_skill_is_that_of_the_formulas(parts):
    found = sums_of(*parts)
    assert found.count == 1000
    assert found.bias == pytest.approx(ERRORS.mean(), rel=1e-12)
    assert found.rmse == pytest.approx(np.sqrt((ERRORS**2).mean()), rel=1e-12)
    assert found.r2 == pytest.approx(1 - (ERRORS**2).mean() / TARGETS.var(), rel=1e-12)
    assert found.explained == pytest.approx(1 - ERRORS.var() / TARGETS.var(), rel=1e-12)


def test_skill_leaves_out_what_is_no_number_and_says_nothing_of_a_constant():
    found = ErrorSums.of(np.array([1.0, 2.0, 3.0]), np.array([0.5, np.nan, -0.5]))
    assert (found.count, found.bias, found.rmse) == (2, 0.0, 0.5)
    same = ErrorSums.of(np.ones(4), np.full(4, 0.25))
    assert (same.r2, same.explained) == (None, None)
    assert np.isnan(ErrorSums().rmse)


def test_derivatives_of_parts_are_those_of_all():
    jacobian = RANDOM.normal(size=(50, 2, 3))
    found = DerivativeSums.of(jacobian[:20])
    for part in (jacobian[20:21], jacobian[21:]):
        found.merge(DerivativeSums.of(part))
    assert found.count == 50
    np.testing.assert_allclose(found.mean, jacobian.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.spread, jacobian.std(axis=0), rtol=1e-12)


def test_the_page_says_what_was_found_with_units(tmp_path):
    derivatives = Derivatives(
        DerivativeSums.of(np.array([[[1.0, 4.0]], [[3.0, 4.0]]])), ["flux"], ["u<10>", "t"], ["W m-2"], ["m/s", "K"]
    )
    found = Findings(
        [Skill("flux", "W m-2", sums_of(slice(None)))], "Over all.",
        Pairs(TARGETS[:, None], (TARGETS + ERRORS)[:, None], np.arange(1000)), error_map=b"picture",
        derivatives=derivatives, settings=["a < b."],
    )  # fmt: skip
    page = write_report(tmp_path, {}, found).read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "What was trained", "Prediction against truth", "Skill", "Where the errors are", "Derivatives of the network",
        "Summary",
    ]  # fmt: skip
    cells = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    assert ["flux by u&lt;10&gt;", "2", "1", "W m-2 / (m/s)"] in cells
    assert ["flux by t", "4", "0", "W m-2 / K"] in cells
    (skill,) = [row for row in cells if row[:2] == ["flux", "W m-2"]]
    assert skill[2:4] == [f"{ERRORS.mean():.4g}", f"{np.sqrt((ERRORS**2).mean()):.4g}"]
    assert "truth of flux (W m-2)" in page
    assert "<p>a &lt; b.</p>" in page
    assert base64.b64encode(b"picture").decode() in page


def test_many_derivatives_are_a_picture():
    names = [f"x{number}" for number in range(MOST_LISTED)]
    jacobian = RANDOM.normal(size=(5, 2, MOST_LISTED))
    found = Derivatives(DerivativeSums.of(jacobian), ["a", "b"], names, ["", ""], [""] * MOST_LISTED)
    text = render_derivatives(found)
    assert "<svg" in text
    assert "There are 120" in text


@pytest.mark.parametrize(
    ("settings", "values", "words"),
    [
        (
            ["data.data_path=a.nc", "model.name=mlp", "model.hidden_layers=2", "variables.output_variables=[y]"],
            {"num_training_samples": 12000, "num_validation_samples": 0, "epochs": 3},
            "y from a, b and c, each point a sample, of a.nc. Trained on 12,000 samples, none held out. The network "
            "is a network of dense layers (mlp) of 2 hidden layers with 16 units. Adam minimised the mean squared "
            "error for 3 epochs, with batches of 64 samples and a learning rate of 0.001, seed 0.",
        ),
        (
            ["data.split=time", "seed=7", "training.optimizer.type=sgd", "training.global_batch_size=full"],
            {"num_training_samples": 100, "num_validation_samples": 20, "epochs": 1, "best_epoch": 1},
            "y from a, b and c, each point a sample, of a synthetic CICE history. Trained on 100 samples; 20 "
            "were held out (blocks of time). The network is an IceNet with 16 units. Stochastic gradient descent "
            "minimised the mean squared error for 1 epoch, with all samples at once and a learning rate of 0.001, "
            "seed 7; the weights are those of epoch 1, the best.",
        ),
    ],
)
def test_settings_are_told_in_words(settings, values, words):
    config = load_run_config(None, settings).config
    assert " ".join(describe_settings(config, ["a", "b", "c"], ["y"], values)) == words


def test_the_original_programs_steps_are_of_all_samples():
    config = load_run_config(None, ["semantics=reference"]).config
    assert "with all samples at once and" in describe_settings(config, ["a"], ["y"], {})[-1]


def test_names_are_listed_as_a_sentence_does() -> None:
    listed = [_listed(["a", "b", "c"][:count]) for count in range(4)]
    assert listed == ["", "a", "a and b", "a, b and c"]
