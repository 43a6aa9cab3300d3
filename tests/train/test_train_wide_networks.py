"""Layers of 128 units and more, whose products the compiled step computes by panels: the same sums in the same order.

b  rows of a microbatch      I, J  inputs and outputs of a layer
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import train
from played_runs import Run, fitted_hashes, points, run_alone
from test_train_same_bits import weights_of

from mpitrain.train.checkpoint.format import weights_sha256

WIDE = ("model.name=mlp", "model.hidden_layers=2", "model.hidden_activation=relu")
EVERYTHING = ("model.dropout=0.2", "model.layer_norm=true", "model.residual=true", "model.hidden_activation=silu")
Rows = np.ndarray


def in_order(start: Rows | float, left: Rows, right: Rows) -> Rows:
    """start + left @ right, (M, K) and (K, N), in order of K with one fused multiply-add for each product."""
    total = np.broadcast_to(np.float32(start), (len(left), right.shape[1])).astype(np.float32)
    for k in range(len(right)):
        # In 64 bits of mantissa the product is exact, and the sum is rounded so finely that float32 rounds it right.
        product = left[:, k, None].astype(np.longdouble) * right[k].astype(np.longdouble)
        total = (product + total).astype(np.float32)
    return total


def gradient_in_order(run: Run) -> list[Rows]:
    """The gradient of the first batch's summed loss: weight and bias of each layer, from the settings' definition."""
    parameters = [torch.as_tensor(value).numpy() for _, value in run.model.named_parameters()]
    statistics = {name: torch.as_tensor(value).numpy() for name, value in run.model.named_buffers()}
    weights, biases = parameters[::2], parameters[1::2]
    leaves = []
    for microbatch in run.engine.step_microbatches.apart(0):
        reciprocal = np.float32(1) / statistics["input_std"]
        outputs = [(np.asarray(microbatch.inputs) - statistics["input_mean"]) * reciprocal]
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            sums = in_order(bias, outputs[-1], weight.T)
            outputs.append(sums if layer == len(weights) - 1 else np.maximum(sums, 0))
        targets = (np.asarray(microbatch.targets) - statistics["output_mean"]) / statistics["output_std"]
        delta = np.asarray(microbatch.weights).reshape(-1, 1) * (2 * (outputs[-1] - targets))
        gradient: list[Rows] = []
        for layer in reversed(range(len(weights))):
            rows = np.ones((1, len(delta)), np.float32)
            gradient[:0] = [in_order(0, delta.T, outputs[layer]), in_order(0, rows, delta)[0]]
            delta = in_order(0, delta, weights[layer]) * (outputs[layer] > 0)
        leaves.append(gradient)
    while len(leaves) > 1:  # the pairwise tree
        leaves = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0]


@pytest.mark.parametrize("width", [144, 130, 300])
def test_the_gradient_is_that_of_the_documented_order_bit_for_bit(width: int) -> None:
    """Rows of whole vectors and others; 300 inputs are more than a panel has rows, in two blocks of the sum."""
    run = run_alone(*WIDE, f"model.hidden_size={width}", samples=points(num_targets=3))
    assert run.parts.choice.name == "compiled"
    expected = gradient_in_order(run)
    engine = run.engine
    engine.start_epoch(0)
    engine._kernel.sum_microbatches(engine._step_address, engine._addresses.order_address(0), 0.0)
    found = engine._partials[0, : len(engine.optimizer.weights)]
    np.testing.assert_array_equal(found, np.concatenate([part.reshape(-1) for part in expected]))


@pytest.mark.parametrize("more", [(), EVERYTHING[1:], ("model.batch_norm=true",), ("training.reduction=any",)], ids=str)
def test_wide_layers_are_the_eager_engine_s_to_rounding(more: tuple[str, ...]) -> None:
    settings = (*WIDE, "model.hidden_size=200", "training.dtype=float64", "training.global_batch_size=92", *more)
    own, eager = (run_alone(*settings, *engine).fit() for engine in ((), ("training.engine=eager",)))
    assert (own.parts.choice.name, eager.parts.choice.name) == ("compiled", "eager")
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("inputs", "units", "targets"), [(200, 136, 130), (130, 144, 3), (300, 20, 129)])
def test_layers_of_several_widths_in_turn(inputs: int, units: int, targets: int) -> None:
    settings = (*WIDE, f"model.hidden_size={units}", "training.dtype=float64", "training.global_batch_size=92")
    samples = points(num_inputs=inputs, num_targets=targets)
    own, eager = (run_alone(*settings, *more, samples=samples).fit() for more in ((), ("training.engine=eager",)))
    assert own.parts.choice.name == "compiled"
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("more", [(), EVERYTHING, ("training.global_batch_size=2000",)], ids=["", "everything", "2000"])
def test_one_hash_of_wide_layers_on_any_number_of_ranks(more: tuple[str, ...]) -> None:
    settings, samples = (*WIDE, "model.hidden_size=136", "training.epochs=1", *more), points(2100 if more else 116)
    (one,) = fitted_hashes(1, *settings, samples=samples)
    assert {found for count in (2, 3, 8) for found in fitted_hashes(count, *settings, samples=samples)} == {one}


@pytest.mark.lab
@pytest.mark.parametrize("units", [768, 1024])
def test_one_hash_on_real_ranks_and_instruction_sets_and_resumed_on_another_number(
    tmp_path: Path, small_history: Path, units: int
) -> None:
    settings = (
        *WIDE, f"data.data_path={small_history}", f"model.hidden_size={units}", "training.epochs=2",
        "training.global_batch_size=256",
    )  # fmt: skip

    def hash_of(name: str, num_ranks: int, *more: str) -> str:
        done = train(num_ranks, tmp_path / name, *settings, *more)
        assert done.returncode == 0, done.stderr
        return weights_sha256(weights_of(tmp_path / name))

    expected = hash_of("1", 1)
    assert [hash_of(str(count), count) for count in (3, 8)] == [expected] * 2
    sets = [hash_of(name, 2, f"compute.instruction_set={name}") for name in ("x86-64-v3", "x86-64")]
    assert sets == [expected] * 2
    hash_of("resumed", 3, "training.epochs=1")
    assert hash_of("resumed", 2, "--resume") == expected
