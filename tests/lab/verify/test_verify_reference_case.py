"""Python's public command, the C++ program and what the original program left behind, on one case.

Python and the C++ program share the CPU, torch's kernels and the MPI library: their bits must be equal everywhere. The
original's results come from another CPU: TOLERANCE, and the bits where a forward pass shows the same kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE, REFERENCE_EPOCHS, train_reference_case
from cpp_program import START, cpp_program, openmpi_python, read_arrays, run_cpp
from history_samples import read_samples
from networks import build_icenet

from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.models.jacobian import scalar_jacobian

RANK_COUNTS = (1, 2, 3, 4)
TOLERANCE = 2e-6
PREDICTION_TOLERANCE = 1e-6
HISTORY = REFERENCE_CASE / "cice_history.nc"
DERIVATIVES = ("dcdtair", "dcdtsfc", "dcdt", "dcds", "dcdhs", "dcdhi", "dcdsi")
MPI_LIBRARIES = {"own MPI": sys.executable, "Open MPI": openmpi_python()}


class Trained(NamedTuple):
    """What both programs made on one number of ranks."""

    python_model: Path
    cpp_model: Path
    cpp_trace: dict[str, np.ndarray]
    cpp_prediction: dict[str, np.ndarray]


def train_both(folder: Path, num_ranks: int, python: str, python_model: Path) -> Trained:
    """Train by the C++ program, beside a model that Python has trained."""
    folder.mkdir()
    names = [folder / name for name in ("cpp_model.pt", "trace.nc", "prediction.nc")]
    outputs = [word for flag, path in zip(("--model-output", "--trace", "--prediction"), names, strict=True)
               for word in (flag, str(path))]  # fmt: skip
    done = run_cpp(num_ranks, *START, "--epochs", str(REFERENCE_EPOCHS), "--engine", "torch", *outputs, python=python)
    assert done.returncode == 0, done.stderr
    return Trained(python_model, names[0], read_arrays(names[1]), read_arrays(names[2]))


@pytest.fixture(scope="module", params=list(MPI_LIBRARIES))
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, reference_runs: dict[int, Path]
) -> dict[int, Trained]:
    python = MPI_LIBRARIES[request.param]
    if python is None:
        pytest.skip("MPITRAIN_OPENMPI_PYTHON does not name the Python of an environment with Open MPI")
    if python != sys.executable and not request.config.getoption("--full"):
        pytest.skip("builds the C++ program a second time; --full")
    folder = tmp_path_factory.mktemp("reference_case")
    cpp_program(python)
    found = {}
    for num_ranks in RANK_COUNTS:
        run = reference_runs[num_ranks]
        if python != sys.executable:
            run = folder / f"python_np{num_ranks}"
            train_reference_case(run, num_ranks, python=python)
        found[num_ranks] = train_both(folder / f"np{num_ranks}", num_ranks, python, run / "model.pt")
    return found


@pytest.fixture(scope="module")
def has_golden_kernels(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this CPU gives the original's bits when the C++ program predicts with the original's trained weights."""
    trace = tmp_path_factory.mktemp("witness") / "trace.nc"
    weights = REFERENCE_CASE / "weights_np1.nc"
    flags = ["--history", str(HISTORY), "--initial-weights", str(weights), "--epochs", "1", "--trace", str(trace)]
    assert run_cpp(1, *flags).returncode == 0
    here, golden = read_arrays(trace)["forward_step1"], read_arrays(REFERENCE_CASE / "prediction_np1.nc")["aice_ffnn"]
    assert np.abs(here - golden).max() < 1e-5
    return here.tobytes() == golden.tobytes()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As on the ranks of both programs: a product's bits depend on how its rows are shared out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights_of(model: Path) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in load_and_run_code(model).named_parameters()}


def predict(model: Path) -> tuple[np.ndarray, np.ndarray]:
    """Python's outputs (N,) and derivatives (N, 7) with the parameters and moments of a TorchScript file."""
    network = build_icenet(7, 16, "none", seed=0)
    network.load_state_dict(load_and_run_code(model).state_dict())
    samples = read_samples(HISTORY, "north", True)
    outputs, jacobian = scalar_jacobian(network, torch.from_numpy(samples.inputs))
    return outputs.numpy(), jacobian.numpy()


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_python_and_cpp_weights_are_the_same_bits(trained: dict[int, Trained], num_ranks: int) -> None:
    python, cpp = weights_of(trained[num_ranks].python_model), trained[num_ranks].cpp_trace
    assert list(python) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    for name, values in python.items():
        assert values.shape == cpp[f"weights_final.{name}"].shape
        assert values.tobytes() == cpp[f"weights_final.{name}"].tobytes(), name
        assert values.tobytes() != cpp[f"initial.{name}"].tobytes(), name
    moments = dict(load_and_run_code(trained[num_ranks].python_model).named_buffers())
    for name in ("input_mean", "input_std"):
        assert moments[name].numpy().tobytes() == cpp[name].tobytes()


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
@pytest.mark.parametrize("side", ["Python", "C++"])
def test_weights_are_the_originals(
    trained: dict[int, Trained], has_golden_kernels: bool, side: str, num_ranks: int
) -> None:
    golden = read_arrays(REFERENCE_CASE / f"weights_np{num_ranks}.nc")
    assert len(golden) == 4
    found = weights_of(trained[num_ranks].python_model if side == "Python" else trained[num_ranks].cpp_model)
    assert found.keys() == golden.keys()
    for name, values in golden.items():
        assert found[name].shape == values.shape
        assert np.abs(found[name] - values).max() <= TOLERANCE, name
        if has_golden_kernels:
            assert found[name].tobytes() == values.tobytes(), name


def test_rank_counts_give_different_bits(trained: dict[int, Trained]) -> None:
    """Else equality on four rank counts would say no more than equality on one."""
    assert len({weights_of(run.python_model)["fc1.weight"].tobytes() for run in trained.values()}) == len(RANK_COUNTS)


def test_python_predicts_what_the_original_predicted(trained: dict[int, Trained]) -> None:
    golden = read_arrays(REFERENCE_CASE / "prediction_np1.nc")
    outputs, jacobian = predict(trained[1].python_model)
    assert len(outputs) == len(golden["aice_ffnn"]) > 1000
    assert np.abs(outputs - golden["aice_ffnn"]).max() <= PREDICTION_TOLERANCE
    for column, name in enumerate(DERIVATIVES):
        assert np.abs(jacobian[:, column] - golden[name]).max() <= PREDICTION_TOLERANCE, name
        assert np.abs(golden[name]).max() > 100 * PREDICTION_TOLERANCE, name  # the tolerance says something


def test_cpp_predicts_what_the_original_predicted(trained: dict[int, Trained]) -> None:
    golden, found = read_arrays(REFERENCE_CASE / "prediction_np1.nc"), trained[1].cpp_prediction
    assert set(found) == set(golden) == {"lon", "lat", "aice", "aice_ffnn", *DERIVATIVES}
    for name in ("lon", "lat", "aice"):
        assert found[name].tobytes() == golden[name].tobytes()
    for name in ("aice_ffnn", *DERIVATIVES):
        assert np.abs(found[name] - golden[name]).max() <= PREDICTION_TOLERANCE, name


def test_one_step_less_is_outside_the_tolerances(tmp_path: Path) -> None:
    names = tmp_path / "trace.nc", tmp_path / "prediction.nc"
    flags = ["--epochs", str(REFERENCE_EPOCHS - 1), "--trace", str(names[0]), "--prediction", str(names[1])]
    assert run_cpp(1, *START, *flags).returncode == 0
    weights, golden = read_arrays(names[0]), read_arrays(REFERENCE_CASE / "weights_np1.nc")
    assert max(np.abs(weights[f"weights_final.{name}"] - golden[name]).max() for name in golden) > TOLERANCE
    prediction, golden = read_arrays(names[1]), read_arrays(REFERENCE_CASE / "prediction_np1.nc")
    for name in ("aice_ffnn", *DERIVATIVES):
        assert np.abs(prediction[name] - golden[name]).max() > PREDICTION_TOLERANCE, name


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_cpp_predicts_the_same_bits_from_pythons_model(
    trained: dict[int, Trained], tmp_path: Path, num_ranks: int
) -> None:
    model = trained[2].python_model
    assert model.with_name("normalization.model.pt").exists()
    output = tmp_path / "prediction.nc"
    flags = ["--predict-only", "--history", str(HISTORY), "--model", str(model), "--prediction", str(output)]
    done = run_cpp(num_ranks, *flags)
    assert done.returncode == 0, done.stderr
    found, (outputs, jacobian) = read_arrays(output), predict(model)
    assert found["aice_ffnn"].tobytes() == outputs.tobytes()
    for column, name in enumerate(DERIVATIVES):
        assert found[name].tobytes() == np.ascontiguousarray(jacobian[:, column]).tobytes(), name


def test_python_predicts_the_same_bits_from_the_cpp_model(trained: dict[int, Trained]) -> None:
    run = trained[3]
    state = load_and_run_code(run.cpp_model).state_dict()
    side = load_and_run_code(run.cpp_model.with_name("normalization.cpp_model.pt")).state_dict()
    assert list(state["input_mean"].shape) == [7]
    assert torch.equal(side["0"], state["input_mean"])
    assert torch.equal(side["1"], state["input_std"])
    assert float(state["input_std"].min()) > 0
    assert not torch.equal(state["input_std"], torch.ones(7))
    outputs, jacobian = predict(run.cpp_model)
    assert outputs.tobytes() == run.cpp_prediction["aice_ffnn"].tobytes()
    for column, name in enumerate(DERIVATIVES):
        assert np.ascontiguousarray(jacobian[:, column]).tobytes() == run.cpp_prediction[name].tobytes(), name
