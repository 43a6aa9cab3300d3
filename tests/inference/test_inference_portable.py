"""Prediction's own arithmetic: one definition, and the same bits from numpy and from the compiled kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import torch
from conftest import launch, train
from networks import build_icenet
from predicting import HISTORY, mlp, read, write_grid

from mpitrain.inference.portable import functions, with_numpy
from mpitrain.inference.portable.functions import NumpyArithmetic
from mpitrain.inference.portable.kernel import open_kernel
from mpitrain.inference.portable.network import PortableNetwork, find_tiny_input, portable_network_of
from mpitrain.models.jacobian import input_jacobian

ACTIVATIONS = ("none", "sigmoid", "tanh", "relu", "gelu", "silu")
LAYER_NORM = {"layer_norm": True, "hidden_layers": 2}
RESIDUAL = {"residual": True, "hidden_layers": 3}
# Units in the last place of the result, measured over all arguments of float32 (--full) and drawn ones of float64.
LARGEST_ERROR = {"exponential": 1.1, "tanh": 1.4, "erf": 1.4}


def network_of(activation: str, dtype: torch.dtype, **settings: Any) -> tuple[torch.nn.Module, PortableNetwork]:
    model = mlp(7, 2, hidden_size=20, hidden_activation=activation, **settings).to(dtype)
    network = portable_network_of(model)
    assert network is not None
    return model, network


def drawn(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return 4 * torch.randn(count, 7, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.fixture
def flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("activation", "dtype", "settings"),
    [*((name, torch.float32, {}) for name in ACTIVATIONS), ("gelu", torch.float64, {}),
     ("tanh", torch.float32, RESIDUAL | LAYER_NORM)],
)  # fmt: skip
def test_the_kernel_computes_the_bits_of_numpy(activation: str, dtype: torch.dtype, settings: dict[str, Any]) -> None:
    model, network = network_of(activation, dtype, **settings)
    for parameter in model.parameters():  # norms begin with ones and zeros
        parameter.data += torch.linspace(-0.2, 0.3, parameter.numel()).view_as(parameter)
    network = portable_network_of(model)
    inputs = drawn(500, dtype)  # 31 tiles and a part of one
    kernel = open_kernel(network)
    assert kernel is not None
    outputs, jacobian = with_numpy.jacobian(network, inputs.numpy())
    found = kernel.jacobian(inputs.numpy())
    assert kernel.forward(inputs.numpy()).tobytes() == outputs.tobytes()
    assert [one.tobytes() for one in found] == [outputs.tobytes(), jacobian.tobytes()]
    expected = input_jacobian(model, inputs)
    tolerance = 2e-6 if dtype == torch.float32 else 4e-15
    for ours, theirs in zip((outputs, jacobian), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "settings", [{"dropout": 0.5}, {"batch_norm": True}, {"hidden_layers": 5}, LAYER_NORM, RESIDUAL]
)
def test_every_chain_of_dense_layers_is_served(settings: dict[str, Any]) -> None:
    model, _ = network_of("tanh", torch.float64, **settings)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.add_(torch.linspace(0.1, 0.9, len(buffer)))
    network = portable_network_of(model)
    inputs = drawn(50, torch.float64)
    outputs, jacobian = with_numpy.jacobian(network, inputs.numpy())
    for ours, theirs in zip((outputs, jacobian), input_jacobian(model, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("activation", "settings"), [*((name, {}) for name in ACTIVATIONS), ("tanh", LAYER_NORM | RESIDUAL)]
)
def test_flushing_subnormal_numbers_changes_no_bit(
    activation: str, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Weights, inputs and slopes of all sizes, so that some products would be subnormal."""
    model, _ = network_of(activation, torch.float32, **settings)
    sizes = np.random.default_rng(0)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(torch.from_numpy(np.exp2(sizes.uniform(-130, 1, value.shape))).float())
    model.set_normalization(torch.zeros(7), torch.ones(7))
    network, inputs = portable_network_of(model), drawn(2000).numpy()
    inputs *= np.exp2(sizes.uniform(-130, 3, inputs.shape)).astype("f4")
    kernel = open_kernel(network)
    before = [*with_numpy.jacobian(network, inputs), *kernel.jacobian(inputs)]
    before += [with_numpy.tangent_linear(network, inputs, inputs[::-1]), with_numpy.adjoint(network, inputs, before[0])]
    request.getfixturevalue("flushing")
    assert np.float32(2e-38) * np.float32(0.1) == 0  # it flushes now
    after = [*with_numpy.jacobian(network, inputs), *kernel.jacobian(inputs)]
    after += [with_numpy.tangent_linear(network, inputs, inputs[::-1]), with_numpy.adjoint(network, inputs, before[0])]
    assert [one.tobytes() for one in after] == [one.tobytes() for one in before]
    assert np.isfinite(before[0]).all()


@pytest.mark.parametrize(("name", "lowest", "highest"), [("exponential", -87, 87), ("tanh", -20, 20), ("erf", -6, 6)])
def test_functions_are_near_the_exact_ones(
    name: str, lowest: float, highest: float, request: pytest.FixtureRequest
) -> None:
    exact = {"exponential": torch.exp, "tanh": torch.tanh, "erf": torch.erf}[name]
    step = 1 if request.config.getoption("--full") else 997
    arithmetic, largest = NumpyArithmetic("float32"), 0.0
    # Every step-th float of each sign; float64 is exact enough to compare with.
    for sign in (0, 1 << 31):
        for first in range(0, 0x7F800000, step << 22):
            bits = np.arange(first, min(first + (step << 22), 0x7F800000), step, dtype=np.uint32) + np.uint32(sign)
            x = bits.view(np.float32)
            x = x[(x >= lowest) & (x <= highest) & (np.abs(x) > 1e-30)]
            found = getattr(functions, name)(arithmetic, x)
            expected = exact(torch.from_numpy(x).double()).numpy()
            error = np.abs(found - expected) / np.spacing(np.abs(expected).astype("f4"))
            largest = max(largest, float(error.max(initial=0)))
    assert 0.5 < largest < LARGEST_ERROR[name]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_have_values_everywhere(dtype: str) -> None:
    arithmetic, largest = NumpyArithmetic(dtype), np.finfo(dtype).max
    x = np.array([-np.inf, -largest, -0.0, 0.0, largest, np.inf], dtype)
    with np.errstate(over="raise", divide="raise"):
        assert functions.tanh(arithmetic, x).tolist() == [-1, -1, 0, 0, 1, 1]
        assert functions.erf(arithmetic, x).tolist() == [-1, -1, 0, 0, 1, 1]
    powers = functions.exponential(arithmetic, x)
    assert powers[2] == powers[3] == 1
    assert (np.isfinite(powers) & (powers > 0)).all()
    assert powers[0] == powers[1] < 1e-30
    assert powers[4] == powers[5] > 1e30
    for function in (functions.tanh, functions.erf, functions.exponential):
        assert np.isnan(function(arithmetic, np.array([np.nan], dtype))).all()


def test_tangent_linear_and_adjoint_are_those_of_the_jacobian() -> None:
    for activation in ACTIVATIONS:
        _, network = network_of(activation, torch.float64)
        x, dx, dy = drawn(20, torch.float64).numpy(), np.ones((20, 7)), np.full((20, 2), 0.5)
        _, jacobian = with_numpy.jacobian(network, x)
        np.testing.assert_allclose(with_numpy.tangent_linear(network, x, dx), jacobian.sum(2), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(with_numpy.adjoint(network, x, dy), jacobian.sum(1) / 2, rtol=1e-12, atol=1e-14)


def test_without_a_compiler_numpy_computes(tmp_path: Path) -> None:
    _, network = network_of("relu", torch.float32)
    assert open_kernel(network, {"PATH": str(tmp_path)}) is None
    assert open_kernel(network, {"PATH": "/bin:/usr/bin", "CXX": "false"}) is None


def test_networks_that_it_cannot_serve() -> None:
    from networks import network_settings

    from mpitrain.models.build import build_model

    assert portable_network_of(build_model(network_settings(name="cnn", hidden_size=4), 2, 1, seed=1)) is None
    assert portable_network_of(torch.nn.Linear(2, 1)) is None
    assert portable_network_of(build_icenet(2, 3, "none", 1).half()) is None
    model = build_icenet(2, 3, "none", seed=1)
    model.set_normalization(torch.zeros(2), torch.tensor([1.0, 1e-30]))
    assert find_tiny_input(portable_network_of(model)) == 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for engine in ("compiled", "eager"):
        settings = ("training.epochs=1", f"training.engine={engine}", "model.name=mlp")
        output = f"prediction.output_filename={folder / engine}.nc"
        done = train(None, folder / engine, f"data.data_path={HISTORY}", *settings, output)
        assert done.returncode == 0, done.stderr
    return folder


def predicted(model: Path, output: Path, *options: str) -> tuple[dict[str, np.ndarray], str]:
    done = launch(["-m", "mpitrain", "predict", str(model), "--output", str(output), *options], None, output.parent)
    assert done.returncode == 0, done.stderr
    with netCDF4.Dataset(str(output)) as dataset:
        return read(output), dataset.arithmetic.split()[0]


@pytest.mark.lab
def test_predictions_say_whose_arithmetic_they_are(runs: Path, tmp_path: Path) -> None:
    ours, words = predicted(runs / "compiled", tmp_path / "ours.nc")
    torchs, torch_words = predicted(runs / "compiled", tmp_path / "torchs.nc", "--arithmetic", "torch")
    assert (words, torch_words) == ("portable", "torch")
    name = "aice_h_predicted"
    np.testing.assert_allclose(ours[name], torchs[name], rtol=2e-6, atol=1e-6)
    assert ours[name].tobytes() != torchs[name].tobytes()
    assert read(runs / "compiled.nc")[name].tobytes() == ours[name].tobytes()  # that at the run's end
    eager, eager_words = predicted(runs / "eager", tmp_path / "eager.nc")
    portable, _ = predicted(runs / "eager", tmp_path / "portable.nc", "--arithmetic", "portable")
    assert eager_words == "torch"
    assert eager[name].tobytes() != portable[name].tobytes()


@pytest.mark.lab
def test_networks_of_fields_cannot_be_asked_for_it(tmp_path: Path) -> None:
    grid = write_grid(tmp_path / "grid.nc")
    settings = ("data.samples=fields", "model.name=cnn", "variables.input_variables=[x]", "domain.mask_mode=all",
                "variables.output_variables=[z]", "training.epochs=1", "data.validation_split=0")  # fmt: skip
    done = train(None, tmp_path / "run", f"data.data_path={grid}", *settings)
    assert done.returncode == 0, done.stderr
    done = launch(["-m", "mpitrain", "predict", str(tmp_path / "run"), "--arithmetic", "portable"], None, tmp_path)
    assert done.returncode == 2
    assert "--arithmetic portable: needs a chain of dense layers (icenet, mlp)" in done.our_lines[0]
