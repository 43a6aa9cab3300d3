"""The compiled engine of cnn and unet: autograd's numbers, one hash on any number of ranks, and for what it serves."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from played_runs import Run, fields, fitted_hashes, run_alone, with_values

from mpitrain.comm.arrays import address_of
from mpitrain.data.samples import Samples
from mpitrain.errors import ConfigError

COMMON = ("data.samples=fields", "training.global_batch_size=8", "data.validation_split=0.2")
CNN = (*COMMON, "model.name=cnn", "model.hidden_layers=2", "model.hidden_size=5")
UNET = (*COMMON, "model.name=unet", "model.hidden_layers=1", "model.hidden_size=3")
PERIODIC = "model.periodic=true"
# A bias before a norm has no gradient but rounding, which Adam would make whole steps of.
NORM = ("model.batch_norm=true", "training.optimizer.type=sgd")
# Settings, and rows and columns of a field: some that are no multiple of what a register or a tile holds.
CASES = {
    "cnn": (CNN, (6, 8)),
    "cnn of one row": ((*CNN, "training.loss_function=huber"), (1, 33)),
    "cnn, periodic, narrower than its square": ((*CNN, PERIODIC, "model.kernel_size=7"), (5, 2)),
    "cnn, silu and sigmoid": (
        (*CNN, "model.hidden_activation=silu", "model.output_activation=sigmoid", "model.kernel_size=5"),
        (7, 26),
    ),
    "cnn of 17 channels": (
        (*CNN, PERIODIC, "model.hidden_size=17", "model.hidden_activation=tanh", "training.gradient_clip_norm=0.1"),
        (4, 9),
    ),
    "cnn, batch norm": ((*CNN, *NORM), (6, 8)),
    "unet": (UNET, (6, 8)),
    "unet, continued": ((*UNET, "model.hidden_layers=2", "training.loss_function=mae"), (5, 7)),
    "unet, continued, periodic": ((*UNET, PERIODIC, "model.hidden_activation=gelu"), (7, 9)),
    "unet, batch norm": ((*UNET, *NORM, "model.hidden_size=16"), (6, 7)),
}


def between_0_and_1(samples: Samples) -> Samples:
    """The samples with targets that a sigmoid can follow."""
    return with_values(samples, targets=1 / (1 + np.exp(-samples.targets)))


@pytest.mark.parametrize("name", CASES)
def test_trains_as_autograd_does(name: str) -> None:
    settings, size = CASES[name]
    settings = (*settings, "training.dtype=float64")
    samples = between_0_and_1(fields(20, *size))
    own, eager = (run_alone(*settings, *more, samples=samples).fit() for more in ((), ("training.engine=eager",)))
    assert (own.parts.choice.name, eager.parts.choice.name) == ("compiled", "eager")
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-10, atol=1e-12)
    assert own.trainer.state.train_loss == pytest.approx(eager.trainer.state.train_loss, rel=1e-10)
    assert own.trainer.state.validation_loss == pytest.approx(eager.trainer.state.validation_loss, rel=1e-10)


def first_gradient(run: Run) -> torch.Tensor:
    """The gradient of the first batch's summed loss, of an engine that has taken no step."""
    engine = run.engine
    engine.start_epoch(0)
    engine._kernel.sum_microbatches(engine._step_address, engine._addresses.order_address(0), 0.0)
    return torch.from_numpy(engine._partials[0, : len(engine.optimizer.weights)].copy())


@pytest.mark.parametrize("name", ["cnn", "unet, continued, periodic"])
def test_gradients_are_autograds_to_1e_10(name: str) -> None:
    settings, size = CASES[name]
    settings = (*settings, "training.dtype=float64", "training.optimizer.type=sgd")
    samples = fields(20, *size)
    gradient = first_gradient(run_alone(*settings, samples=samples))
    eager = run_alone(*settings, "training.engine=eager", samples=samples)
    before = eager.parameters()
    eager.steps(1)
    expected = before - eager.parameters()
    scale = float(gradient @ expected / (expected @ expected))
    assert float((gradient - scale * expected).abs().max() / gradient.abs().max()) < 1e-10


def test_gradients_of_float32_are_those_of_float64_to_a_few_digits_less() -> None:
    """Winograd's way adds and subtracts before it multiplies; with 3 x 3 points that costs next to no digit."""
    samples = fields(20, 23, 37)
    settings = (*UNET, "model.hidden_size=16", "training.optimizer.type=sgd")
    single, double = (
        first_gradient(run_alone(*settings, *more, samples=samples)) for more in ((), ("training.dtype=float64",))
    )
    assert single.dtype == torch.float32
    assert float((single.double() - double).norm() / double.norm()) < 3e-7


@pytest.mark.parametrize(
    "settings",
    [CNN, (*UNET, PERIODIC, "model.dropout=0.3"), (*UNET, "model.batch_norm=true")],
    ids=["cnn", "unet, periodic, dropout", "unet, batch norm"],
)
def test_one_hash_on_any_number_of_ranks(settings: tuple[str, ...]) -> None:
    samples = fields(37)
    (one,) = fitted_hashes(1, *settings, samples=samples)
    for num_ranks in (2, 3, 5, 8):
        assert fitted_hashes(num_ranks, *settings, samples=samples) == [one] * num_ranks
    assert fitted_hashes(1, *settings, "seed=1", samples=samples) != [one]


def loss_of(run: Run) -> float:
    """The first batch's summed loss by the weights as they are, with the same dropout each time."""
    engine = run.engine
    engine._kernel.sum_microbatches(engine._step_address, engine._addresses.order_address(0), 0.0)
    return float(engine._partials[0, -3])


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_gradient_is_that_of_the_loss_with_its_dropout(activation: str) -> None:
    settings = (*UNET, "model.dropout=0.4", f"model.hidden_activation={activation}", "training.dtype=float64")
    run = run_alone(*settings, samples=fields(20))
    gradient, plain = first_gradient(run), run_alone(*UNET, "training.dtype=float64", samples=fields(20))
    assert loss_of(run) != pytest.approx(loss_of(plain), rel=1e-3)
    weights = run.engine.optimizer.weights
    for number in range(0, len(weights), 29):
        kept, losses = weights[number], []
        for step in (1e-6, -1e-6):
            weights[number] = kept + step
            losses.append(loss_of(run))
        weights[number] = kept
        assert (losses[0] - losses[1]) / 2e-6 == pytest.approx(float(gradient[number]), rel=1e-5, abs=1e-5)


def test_dropout_leaves_whole_channels_out_in_training_alone() -> None:
    run = run_alone(*CNN, "model.dropout=0.4", samples=fields(20))
    kept = run_alone(*CNN, samples=fields(20))
    assert run.engine.validation_loss() == kept.engine.validation_loss()
    assert run.steps(1) != kept.steps(1)


def test_a_sample_that_counts_nowhere_changes_nothing() -> None:
    samples = fields(20)
    inputs = samples.inputs.copy()
    run = run_alone(*CNN, "training.global_batch_size=16", samples=samples)
    assert run.engine.steps_per_epoch * 16 > 16, "the last batch is filled up"
    assert np.isfinite(run.fit().trainer.state.train_loss)
    assert (samples.inputs == inputs).all()


WIDE = "model.hidden_size=129"
ELSEWHERE = {
    "wide": ((*CNN, WIDE), r"more than 128 channels"),
    "large squares": ((*CNN, "model.kernel_size=9"), r"wider than 7"),
    "several fields": ((*CNN, "model.batch_norm=true", "training.global_batch_size=16"), r"over several fields"),
    "synchronised": ((*CNN, "model.batch_norm=true", "distributed.sync_batch_norm=true"), r"sync_batch_norm=true"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_it_cannot_is_torchs_and_a_word_tells_why(name: str) -> None:
    settings, reason = ELSEWHERE[name]
    choice = run_alone(*settings, samples=fields()).parts.choice
    assert choice.name in ("traced", "eager")
    with pytest.raises(ConfigError, match=rf"^training\.engine=compiled: .*{reason}.*; use training\.engine=auto$"):
        run_alone(*settings, "training.engine=compiled", samples=fields())
    if choice.name == "traced":
        assert re.search(reason, choice.reason)


def test_a_module_shares_the_engines_memory() -> None:
    run = run_alone(*UNET, samples=fields())
    first = next(run.model.parameters())
    assert address_of(first) == address_of(run.engine.optimizer.weights)
    before = first.clone()
    run.steps(1)
    assert not torch.equal(before, first)
