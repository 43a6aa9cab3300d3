"""Predictions for points and fields: the same on any number of ranks, every value where it belongs, files whole."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
from conftest import launch
from predicting import XY, config_of, golden_icenet, left_behind, mlp, predict_played, read, save, write_grid

from mpitrain.data.samples import concatenate
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import OutputError
from mpitrain.inference.cf_variables import variable_names
from mpitrain.models.jacobian import input_jacobian
from mpitrain.synthetic.history import Storage, write_synthetic_histories

FILL = np.float32(9.969209968386869e36)


def test_ranks_write_the_same_bytes(tmp_path: Path) -> None:
    """Four chunks on 1, 2 and 3 ranks of the public command."""
    history, model = tmp_path / "history.nc", save(golden_icenet(), tmp_path / "model.pt")
    sizes = {"num_latitudes": 160, "num_longitudes": 240, "num_times": 17}
    list(write_synthetic_histories([history], seed=1, **sizes, storage=Storage((1, 160, 240), 1)))
    assert len(open_source(selection_of(config_of(history)), 2 * 2**20).chunks) == 4
    outputs, said = [tmp_path / f"np{n}.nc" for n in (1, 2, 3)], set()
    for num_ranks, output in enumerate(outputs, 1):
        command = ["-m", "mpitrain", "predict", str(model), "--data", str(history), "--output", str(output)]
        done = launch(command, num_ranks)
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.splitlines()[0])
    first = read(outputs[0])
    assert len(first["aice"]) > 30000
    for output in outputs[1:]:
        assert {name: values.tobytes() for name, values in read(output).items()} == {
            name: values.tobytes() for name, values in first.items()
        }
    assert len(said) == 1


def test_points_hold_coordinates_errors_and_derivatives(tmp_path: Path) -> None:
    files = [write_grid(tmp_path / "a.nc"), write_grid(tmp_path / "b.nc", 2, 1, "2000-01-03")]
    model = save(mlp(2), tmp_path / "model.pt", ("x", "z"), ("y",))
    config = config_of([str(file) for file in files], *XY)
    prediction = predict_played(model, config, tmp_path / "p.nc", chunk_bytes=100, layout="rows")
    found = read(tmp_path / "p.nc")
    assert list(found) == ["lon", "lat", "time", "grid_index", "y", "y_predicted", "y_error", "dy_dx", "dy_dz"]
    source = open_source(selection_of(config))
    samples = concatenate([source.read(chunk) for chunk in source.chunks])
    samples = samples.take(np.flatnonzero(np.isfinite(samples.inputs).all(axis=1)))
    index = samples.grid_index
    np.testing.assert_array_equal(found["grid_index"], index)
    assert found["grid_index"].dtype == np.int32
    np.testing.assert_array_equal(found["lat"], (index % 20 // 5 + 1) * 10.0)
    np.testing.assert_array_equal(found["lon"], index % 5)
    # The second file counts from two days later: 1 and 2 there are 3 and 4 here.
    np.testing.assert_array_equal(found["time"], np.array([0, 1, 2, 3, 4])[index // 20])
    outputs, jacobian = input_jacobian(mlp(2), torch.from_numpy(samples.inputs))
    np.testing.assert_allclose(found["y_predicted"], outputs[:, 0], atol=1e-6)
    np.testing.assert_allclose(np.stack([found["dy_dx"], found["dy_dz"]], axis=1), jacobian[:, 0], atol=1e-6)
    missing = np.isnan(samples.targets[:, 0])
    assert 0 < missing.sum() < len(missing)
    assert (found["y"][missing] == FILL).all()
    assert (found["y_error"][missing] == FILL).all()
    np.testing.assert_allclose(found["y_error"][~missing], (found["y_predicted"] - found["y"])[~missing], atol=1e-6)
    statistics = prediction.statistics["y"]
    assert (prediction.num_samples, statistics.count) == (len(missing), int((~missing).sum()))
    assert prediction.num_dropped == 2 + 5 * 2  # the holes in x, and land
    errors = found["y_error"][~missing].astype(np.float64)
    assert (statistics.bias, statistics.rmse) == pytest.approx((errors.mean(), np.sqrt((errors**2).mean())), rel=1e-6)
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as dataset:
        units = {name: dataset[name].units for name in ("time", "y", "y_predicted", "y_error", "dy_dx", "dy_dz")}
        assert dataset["y_predicted"].coordinates == "lon lat time"
    assert units == {"time": "days since 2000-01-01", "y": "K", "y_predicted": "K", "y_error": "K", "dy_dx": "K/(m/s)",
                     "dy_dz": "K/m"}  # fmt: skip


def test_tables_on_played_ranks_give_the_same_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", inputs=random.normal(size=(5000, 3)), targets=random.normal(size=(5000, 2)))
    model = save(mlp(3, 2), tmp_path / "model.pt", ("a", "b", "c"), ("u", "v"))
    config = config_of(tmp_path / "t.npz")
    found = []
    for num_ranks in (1, 2, 3, 4):
        predict_played(model, config, tmp_path / "p.nc", num_ranks, chunk_bytes=7000)
        found.append({name: values.tobytes() for name, values in read(tmp_path / "p.nc").items()})
    assert list(found[0])[:4] == ["grid_index", "targets_0", "targets_0_predicted", "targets_0_error"]
    assert len(found[0]) == 1 + 2 * (3 + 3)
    assert found.count(found[0]) == 4


def test_fields_have_fill_values_where_they_are_masked(tmp_path: Path) -> None:
    config = config_of(write_grid(tmp_path / "a.nc"), *XY, "data.samples=fields")
    network = mlp(2, name="cnn", hidden_layers=1)
    model = save(network, tmp_path / "model.pt", ("x", "z"), ("y",))
    prediction = predict_played(model, config, tmp_path / "p.nc", with_jacobian=False, chunk_bytes=100)
    found = read(tmp_path / "p.nc")
    assert {name: values.shape for name, values in found.items()} == {
        "lon": (5,), "lat": (4,), "time": (3,),
        "y": (3, 4, 5), "y_predicted": (3, 4, 5), "y_error": (3, 4, 5),
    }  # fmt: skip
    masked = found["y"] == FILL
    assert masked.sum() == 3 * 2 + 1
    for name in ("y_predicted", "y_error"):
        np.testing.assert_array_equal(found[name] == FILL, masked)
    source = open_source(selection_of(config))
    inputs = torch.from_numpy(np.concatenate([source.read(chunk).inputs for chunk in source.chunks]))
    inputs = torch.where(torch.isfinite(inputs), inputs, torch.tensor(0.5))  # the mean in the model's buffers
    with torch.no_grad():
        expected = network(inputs)[:, 0].numpy()
    np.testing.assert_allclose(found["y_predicted"][~masked], expected[~masked], atol=1e-6)
    assert prediction.statistics["y"].count == 60 - 7


def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    config, model = config_of(write_grid(tmp_path / "a.nc"), *XY), save(mlp(2), tmp_path / "m.pt", ("x", "z"), ("y",))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p.nc").write_bytes(b"the one before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * 1024, hard))
    try:
        with pytest.raises(OutputError, match=r"out/p\.nc: cannot be written \(.+\); check the folder"):
            predict_played(model, config, tmp_path / "out" / "p.nc")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert left_behind(tmp_path / "out") == ["p.nc"]
    assert (tmp_path / "out" / "p.nc").read_bytes() == b"the one before"
    predict_played(model, config, tmp_path / "out" / "p.nc")
    assert read(tmp_path / "out" / "p.nc")["y"].shape == (3, 4, 5)


def test_no_folder_no_file(tmp_path: Path) -> None:
    config, model = config_of(write_grid(tmp_path / "a.nc"), *XY), save(mlp(2), tmp_path / "m.pt", ("x", "z"), ("y",))
    with pytest.raises(OutputError, match=r"nowhere/p\.nc: cannot be written"):
        predict_played(model, config, tmp_path / "nowhere" / "p.nc")
    assert left_behind(tmp_path) == ["a.nc", "m.pt", "normalization.m.pt"]


def test_an_error_amid_the_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpitrain.inference.netcdf_output import GrowingFile

    config, model = config_of(write_grid(tmp_path / "a.nc"), *XY), save(mlp(2), tmp_path / "m.pt", ("x", "z"), ("y",))
    put, calls = GrowingFile.put, []

    def fail(self: GrowingFile, *values: object) -> None:
        calls.append(values)
        if len(calls) == 12:  # in the second chunk
            raise OutputError("no space")
        put(self, *values)

    monkeypatch.setattr(GrowingFile, "put", fail)
    with pytest.raises(OutputError, match="no space"):
        predict_played(model, config, tmp_path / "p.nc", chunk_bytes=100)
    assert left_behind(tmp_path) == ["a.nc", "m.pt", "normalization.m.pt"]


def test_names_of_variables_are_one_to_one() -> None:
    names = ["Temperature (°C)", "Temperature_C", "Temperature [C]", "x[lev=0]", "Salinity [g kg⁻¹]", "sst"]
    found = variable_names(names)
    assert list(found[name] for name in names) == [
        "Temperature_C_2", "Temperature_C", "Temperature_C_3", "x_lev_0", "Salinity_g_kg", "sst"
    ]  # fmt: skip
