"""An ensemble of whole fields predicts as one of points does: mean, spread and each member, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import launch

from mpitrain.cli.main import main
from mpitrain.data import Samples
from mpitrain.inference.rows import RowLayout


def test_rows_of_fields_hold_further_fields_and_no_value_where_nothing_counts() -> None:
    shape, rng = (3, 4), np.random.default_rng(0)
    layout = RowLayout("fields", 1, 2, shape, with_jacobian=False, num_extra=6)
    targets, outputs = rng.normal(size=(2, 5, 2, *shape))
    extra, weights = rng.normal(size=(5, 6, *shape)), np.ones((5, 2, *shape))
    weights[:, 1, 0, 0] = 0
    samples = Samples(np.zeros((5, 1, *shape)), targets, np.arange(5), ("x",), ("y", "z"), weights)
    rows = layout.pack(samples, outputs, extra.reshape(5, -1))
    assert rows.shape[1] == layout.no_rows().shape[1]
    found = layout.extra_of(rows)
    assert found.shape == extra.shape
    assert np.isnan(found[:, 1::2, 0, 0]).all()
    assert np.array_equal(found[:, ::2], extra[:, ::2])
    assert np.array_equal(layout.unpack(rows)[2][:, 0], outputs[:, 0])


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("fields"), np.random.default_rng(1)
    with netCDF4.Dataset(folder / "fields.nc", "w") as file:
        for name, size, units in (("time", 12, "days since 2000-01-01"), ("lat", 6, "degrees_north"),
                                  ("lon", 8, "degrees_east")):  # fmt: skip
            file.createDimension(name, size)
            file.createVariable(name, "f8", (name,)).units = units
            file[name][:] = np.arange(size)
        for name in "xyz":
            values = rng.normal(size=(12, 6, 8))
            values[:, 0, 0] = -999 if name == "z" else 0.5
            file.createVariable(name, "f4", ("time", "lat", "lon"), fill_value=-999)[:] = values
    words = ["variables.input_variables=[x]", "variables.output_variables=[y, z]", "data.samples=fields",
             "data.split=time", "model.name=cnn", "model.hidden_size=4", "ensemble.members=2"]  # fmt: skip
    data = ["--data", str(folder / "fields.nc")]
    assert main(["ensemble", *data, *words, "--epochs", "1", "--output", str(folder / "two")]) == 0
    return folder


def values_of(path: Path, name: str) -> np.ndarray:
    with netCDF4.Dataset(path) as file:
        found: np.ndarray = np.ma.filled(file[name][:].astype(float), np.nan)
        return found


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_mean_and_spread_are_those_of_the_members_own_predictions(ensemble: Path, num_ranks: int) -> None:
    out = f"out_{num_ranks}.nc"
    predict = ["predict", "two", "--data", "fields.nc", "--output", out]
    done = launch(["-m", "mpitrain", *predict], num_ranks=num_ranks, cwd=ensemble)
    assert done.returncode == 0, done.stderr
    roles = [line.rpartition(", ")[2] for line in done.stdout.splitlines() if line.startswith("y: RMSE")]
    assert sorted(roles) == ["held out for validation", "trained on"]
    own = sorted((ensemble / "two" / "members").iterdir())
    for name in "yz":
        members = [values_of(ensemble / out, f"{name}_member_{one.name}") for one in own]
        assert np.allclose(values_of(ensemble / out, f"{name}_predicted"), np.mean(members, 0), equal_nan=True)
        spread = values_of(ensemble / out, f"{name}_spread")
        assert np.allclose(spread, np.std(members, 0, ddof=1), atol=1e-6, equal_nan=True)
        assert np.isnan(spread[:, 0, 0]).all() == (name == "z")
        assert np.isfinite(spread[:, 1:]).all()
    assert set(values_of(ensemble / out, "sample_role")) == {1, 2}
    if num_ranks == 1:
        alone = ["predict", str(own[0]), "--data", str(ensemble / "fields.nc"), "--output", str(ensemble / "one.nc")]
        assert main(alone) == 0
        same = values_of(ensemble / "one.nc", "y_predicted")
        assert np.allclose(same, values_of(ensemble / out, f"y_member_{own[0].name}"), atol=1e-6)
