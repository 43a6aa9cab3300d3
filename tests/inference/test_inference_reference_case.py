"""The original program's own prediction, repeated from its weights, and from its own kind of archive."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE, launch
from cpp_program import START, run_cpp
from predicting import DERIVATIVES, HISTORY, config_of, golden_icenet, predict_played, read, save

TOLERANCE = 1e-6
NAMES = ["lon", "lat", "aice", "aice_ffnn", *DERIVATIVES]


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    model = save(golden_icenet(), folder / "model.pt")
    output = folder / "prediction.nc"
    done = launch(["-m", "mpitrain", "predict", str(model), "--data", str(HISTORY), "--output", str(output),
                   "--maps", str(folder / "maps")], 2)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RMSE 0.221, bias -0.190281" in done.stdout.splitlines()[0]
    return output


@pytest.mark.lab
def test_the_variables_are_those_of_the_original(predicted: Path) -> None:
    found, golden = read(predicted), read(REFERENCE_CASE / "prediction_np1.nc")
    assert list(found) == NAMES
    assert set(found) == set(golden)
    for name in NAMES:
        assert (found[name].dtype, found[name].shape) == (np.float32, golden[name].shape)
    for name in ("lon", "lat", "aice"):
        assert found[name].tobytes() == golden[name].tobytes()


@pytest.mark.lab
@pytest.mark.parametrize("name", ["aice_ffnn", *DERIVATIVES])
def test_prediction_and_derivatives_are_the_originals(predicted: Path, name: str) -> None:
    found, golden = read(predicted)[name], read(REFERENCE_CASE / "prediction_np1.nc")[name]
    assert np.abs(found - golden).max() <= TOLERANCE
    assert np.abs(golden).max() > 100 * TOLERANCE  # the tolerance says something


@pytest.mark.lab
def test_derivatives_are_the_closed_form(predicted: Path) -> None:
    """dy/dx = y (1 - y) (W2 W1) / std."""
    model, found = golden_icenet(), read(predicted)
    slope = (model.fc2.weight @ model.fc1.weight / model.input_std)[0].detach().numpy().astype(np.float64)
    answer = found["aice_ffnn"].astype(np.float64)
    for name, factor in zip(DERIVATIVES, slope, strict=True):
        np.testing.assert_allclose(found[name], answer * (1 - answer) * factor, rtol=2e-5, atol=1e-7)


@pytest.mark.lab
def test_the_file_says_what_it_holds(predicted: Path) -> None:
    with netCDF4.Dataset(str(predicted)) as dataset:
        assert list(dataset.dimensions) == ["n"]
        assert dataset.Conventions == "CF-1.8"
        assert len(dataset.model_sha256) == 64
        assert "predicted by mpitrain" in dataset.history
        assert {name: variable.units for name, variable in dataset.variables.items()} == {
            "lon": "degrees_east", "lat": "degrees_north", "aice": "1", "aice_ffnn": "1", "dcdtair": "1/C",
            "dcdtsfc": "1/C", "dcdt": "1/C", "dcds": "1/ppt", "dcdhs": "1/m", "dcdhi": "1/m", "dcdsi": "1/ppt",
        }  # fmt: skip
        assert dataset["aice_ffnn"].coordinates == "lon lat"
        assert all(variable.long_name for variable in dataset.variables.values())


@pytest.mark.lab
def test_maps_are_pictures(predicted: Path) -> None:
    drawn = sorted((predicted.parent / "maps").iterdir())
    assert [path.name for path in drawn] == ["aice_error.png", "aice_predicted.png", "aice_scatter.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000 for path in drawn)


@pytest.mark.lab
def test_the_cpp_programs_own_archive_predicts_what_it_predicted(tmp_path: Path) -> None:
    """`torch::save` writes numbers without code, and the original leaves its buffers at 0 and 1."""
    model, output = tmp_path / "cpp.pt", tmp_path / "cpp.nc"
    done = run_cpp(1, *START, "--epochs", "20", "--model-output", str(model), "--prediction", str(output))
    assert done.returncode == 0, done.stderr
    found = predict_played(model, config_of(HISTORY), tmp_path / "ours.nc")
    assert found.num_samples == len(read(output)["aice"])
    for name in ("aice_ffnn", *DERIVATIVES):
        assert np.abs(read(tmp_path / "ours.nc")[name] - read(output)[name]).max() <= TOLERANCE, name


def test_no_jacobian_no_derivatives(tmp_path: Path) -> None:
    predict_played(save(golden_icenet(), tmp_path / "model.pt"), config_of(HISTORY), tmp_path / "p.nc", 1, False)
    assert list(read(tmp_path / "p.nc")) == NAMES[:4]


def test_a_wrong_weight_is_outside_the_tolerance(tmp_path: Path) -> None:
    model = golden_icenet()
    with torch.no_grad():
        model.fc2.weight[0, 0] += 1e-4
    predict_played(save(model, tmp_path / "model.pt"), config_of(HISTORY), tmp_path / "p.nc")
    golden = read(REFERENCE_CASE / "prediction_np1.nc")
    assert np.abs(read(tmp_path / "p.nc")["aice_ffnn"] - golden["aice_ffnn"]).max() > TOLERANCE
