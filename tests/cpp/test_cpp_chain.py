"""Deeper chains in the C++ program: gradient, output and Jacobian against autograd; what its benchmark trains.

N samples, F features
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE
from cpp_program import read_arrays, run_cpp

from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET

TOLERANCE = 1e-12
HISTORY = REFERENCE_CASE / "cice_history.nc"
ACTIVATIONS = {
    "relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "none": lambda level: level,
}  # fmt: skip
Parameters = dict[str, torch.Tensor]


def draw_weights(path: Path, sizes: Sequence[int]) -> None:
    """Write fc1.weight, fc1.bias, ... of a chain."""
    generator = np.random.default_rng(4)
    with netCDF4.Dataset(path, "w") as dataset:
        for level, units in enumerate(sizes):
            dataset.createDimension(f"level{level}", units)
        for level, (inputs, outputs) in enumerate(itertools.pairwise(sizes), 1):
            for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                names = (f"level{level}", f"level{level - 1}")[: len(shape)]
                values = generator.uniform(-1, 1, shape) / np.sqrt(inputs)
                dataset.createVariable(f"fc{level}.{name}", "f8", names)[:] = values


def parameters_in(arrays: dict[str, np.ndarray], prefix: str) -> Parameters:
    found = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
    return {name: torch.tensor(values, requires_grad=True) for name, values in found.items()}


def forward(parameters: Parameters, inputs: torch.Tensor, hidden: str, output: str) -> torch.Tensor:
    """(N, F) normalised -> (N,)"""
    level, num_layers = inputs, len(parameters) // 2
    for layer in range(1, num_layers + 1):
        level = level @ parameters[f"fc{layer}.weight"].T + parameters[f"fc{layer}.bias"]
        level = ACTIVATIONS[output if layer == num_layers else hidden](level)
    return level[:, 0]


def relative(found: np.ndarray, expected: torch.Tensor) -> float:
    """The largest difference, in units of the largest value."""
    wanted = expected.detach().numpy()
    return float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("engine", ["torch", "plain"])
@pytest.mark.parametrize(
    ("sizes", "hidden", "output"),
    [
        ((7, 64, 64, 1), "relu", "none"),
        ((7, 5, 20, 3, 1), "gelu", "sigmoid"),
        ((7, 9, 1), "tanh", "none"),
    ],
)
def test_gradient_output_and_jacobian_are_those_of_autograd(
    tmp_path: Path, engine: str, sizes: tuple[int, ...], hidden: str, output: str
) -> None:
    weights = tmp_path / "weights.nc"
    draw_weights(weights, sizes)
    done = run_cpp(
        2, "--history", str(HISTORY), "--initial-weights", str(weights), "--trace", str(tmp_path / "trace.nc"),
        "--engine", engine, "--semantics", "standard", "--precision", "float64", "--epochs", "2", "--trace-steps", "1",
        "--hidden-activation", hidden, "--output-activation", output,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trace = read_arrays(tmp_path / "trace.nc")
    fields = read_arrays(HISTORY)
    points = trace["selected_index"]
    inputs = torch.tensor(np.stack([fields[name].reshape(-1)[points] for name in CICE_INPUTS], 1).astype(np.float64))
    targets = torch.tensor(fields[CICE_TARGET].reshape(-1)[points].astype(np.float64))
    mean, std = (torch.tensor(trace[f"input_{name}"]) for name in ("mean", "std"))

    initial = parameters_in(trace, "initial.")
    assert [initial[f"fc{layer}.weight"].shape[0] for layer in range(1, len(sizes))] == list(sizes[1:])
    loss = torch.nn.functional.mse_loss(forward(initial, (inputs - mean) / std, hidden, output), targets)
    loss.backward()
    assert trace["loss"][0] == pytest.approx(float(loss.detach()), rel=TOLERANCE)
    for name, parameter in initial.items():
        assert relative(trace[f"gradient_step1.{name}"], parameter.grad) < TOLERANCE, name

    inputs.requires_grad_()
    predicted = forward(parameters_in(trace, "weights_final."), (inputs - mean) / std, hidden, output)
    predicted.sum().backward()
    assert relative(trace["prediction"], predicted) < TOLERANCE
    assert relative(trace["jacobian"], inputs.grad) < TOLERANCE


def weight_norm(num_steps: int, engine: str, reduction: str, num_ranks: int) -> float:
    """The norm of all weights behind a benchmark of full batches."""
    done = run_cpp(
        num_ranks, "--benchmark", str(num_steps), "--warmup", "5", "--network", "7-16-16-1", "--samples", "320",
        "--hidden-activation", "relu", "--precision", "float64", "--engine", engine, "--reduction", reduction,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["step_us"]) == num_steps
    assert min(report["step_us"]) > 0
    return float(report["weight_norm"])


def test_every_way_of_the_benchmark_trains_the_same_network() -> None:
    """On one batch of all samples the ways differ in rounding only."""
    expected = weight_norm(20, "torch", "original", 2)
    assert abs(weight_norm(1, "torch", "original", 1) - expected) > 1e-4
    for way in (("torch", "fixed", 2), ("plain", "any", 1), ("plain", "any", 2), ("plain", "fixed", 1)):
        assert weight_norm(20, *way) == pytest.approx(expected, abs=1e-9), way
