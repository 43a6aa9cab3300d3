"""The synthetic CICE history file: what it holds, and that its noise is what it says."""

from __future__ import annotations

import netCDF4
import numpy as np
import pytest

from mpitrain.errors import DataError, OutputError
from mpitrain.synthetic.history import read_noise_mse, write_synthetic_history

pytestmark = pytest.mark.fast

INPUTS = ("Tair_h", "Tsfc_h", "sst_h", "sss_h", "hs_h", "hi_h", "sice_h")
UNITS = {
    "ULAT": "degrees",
    "ULON": "degrees",
    "umask": "1",
    "aice_h": "1",
    **dict(zip(INPUTS, ("C", "C", "C", "ppt", "m", "m", "ppt"), strict=True)),
}
SMALL = {"num_latitudes": 40, "num_longitudes": 60}
# What ice on the ocean may be: the lowest and highest value of each input.
PHYSICAL = {
    "Tair_h": (-60, 5),
    "Tsfc_h": (-60, 0),
    "sst_h": (-1.8001, 2),
    "sss_h": (28, 36),
    "hs_h": (0, 2),
    "hi_h": (0.04, 6),
    "sice_h": (3, 12),
}


def read(path):
    """Return every variable as stored, without masks, and the global attributes."""
    with netCDF4.Dataset(path) as dataset:
        dataset.set_auto_mask(False)
        values = {name: variable[:] for name, variable in dataset.variables.items()}
        return values, {name: dataset.getncattr(name) for name in dataset.ncattrs()}


def clean(values, pole):
    """Select as the specification words it, apart from the code under test."""
    latitude, aice = values["ULAT"], values["aice_h"]
    beyond = latitude > 40 if pole == "north" else latitude < -40
    return (values["umask"] == 1) & beyond & (aice > 0) & (aice <= 1)


@pytest.fixture(scope="module")
def default_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("synthetic") / "history.nc"
    return path, write_synthetic_history(path, seed=0)


@pytest.fixture(scope="module")
def default_values(default_file):
    return read(default_file[0])


def test_names_shapes_types_and_units(tmp_path):
    path = tmp_path / "history.nc"
    write_synthetic_history(path, seed=1, num_times=2, **SMALL)
    with netCDF4.Dataset(path) as dataset:
        assert dataset.data_model == "NETCDF4"
        assert set(dataset.variables) == {*UNITS, "time"}
        for name, units in UNITS.items():
            variable = dataset[name]
            is_history = name.endswith("_h")
            assert variable.dimensions == (("time", "nj", "ni") if is_history else ("nj", "ni"))
            assert variable.shape[-2:] == (40, 60)
            assert (variable.dtype, variable.units) == (np.float32, units)
            assert variable.long_name
            if is_history:
                assert variable.missing_value == variable._FillValue == np.float32(1e30)
        assert dataset["time"].shape == (2,)
        assert dataset["time"].units.startswith("days since")
        assert dataset.synthetic_seed == 1
        assert dataset.title
        assert dataset.Conventions.startswith("CF-")


def test_land_is_missing_in_history_and_in_both_hemispheres(default_values):
    values, _ = default_values
    land = values["umask"] == 0
    assert set(np.unique(values["umask"])) == {0, 1}
    for side in (values["ULAT"] > 40, values["ULAT"] < -40):
        assert 0.1 < land[side].mean() < 0.7
    for name in ("aice_h", *INPUTS):
        np.testing.assert_array_equal(values[name][0] == np.float32(1e30), land)


def test_same_seed_same_values_and_time_levels_do_not_depend_on_their_number(tmp_path):
    files = {"one": (7, 1), "again": (7, 1), "longer": (7, 2), "other": (8, 1)}
    for name, (seed, num_times) in files.items():
        write_synthetic_history(tmp_path / name, seed=seed, num_times=num_times, **SMALL)
    values = {name: read(tmp_path / name)[0] for name in files}
    for name, expected in values["one"].items():
        np.testing.assert_array_equal(values["again"][name], expected)
        np.testing.assert_array_equal(values["longer"][name][: len(expected)], expected)
        if name.endswith("_h") or name == "umask":
            assert not np.array_equal(values["other"][name], expected)
    assert not np.array_equal(values["longer"]["aice_h"][0], values["longer"]["aice_h"][1])


def test_sample_counts_are_the_specified_selection(default_file, default_values):
    _, summary = default_file
    values, _ = default_values
    assert summary.num_samples_north == clean(values, "north").sum()
    assert summary.num_samples_south == clean(values, "south").sum()
    assert 5000 <= summary.num_samples_north <= 9000
    assert summary.num_samples_south >= 1000


@pytest.mark.parametrize("pole", ["north", "south"])
def test_noise_attribute_is_the_error_of_the_stored_relation(default_file, default_values, pole):
    path, summary = default_file
    values, attributes = default_values
    chosen = clean(values, pole)
    inputs = np.stack([values[name][chosen] for name in INPUTS], axis=1).astype(np.float64)  # (N, F)
    aice = values["aice_h"][chosen].astype(np.float64)
    mean = 1 / (1 + np.exp(-(inputs @ attributes["aice_weights"] + attributes["aice_bias"])))
    noise = aice - mean

    assert read_noise_mse(path, pole) == pytest.approx(np.mean(noise**2), rel=1e-9)
    assert getattr(summary, f"noise_mse_{pole}") == read_noise_mse(path, pole)
    assert aice.var() > 30 * np.mean(noise**2)
    assert abs(noise.mean()) < 4 * noise.std() / np.sqrt(noise.size)
    middle = np.abs(mean - 0.5) < 0.1
    assert noise[middle].std() == pytest.approx(0.04, rel=0.15)
    assert np.all(np.abs(noise) < np.minimum(mean, 1 - mean))
    # Both tails are there, and no column is nearly a combination of the others.
    assert np.mean(aice < 0.2) > 0.1
    assert np.mean(aice > 0.8) > 0.1
    assert np.linalg.cond(np.corrcoef(inputs.T)) < 40


def test_weights_have_physical_signs(default_values):
    signs = np.sign(default_values[1]["aice_weights"])
    assert dict(zip(INPUTS, signs, strict=True)) == dict(zip(INPUTS, (-1, -1, -1, -1, 1, 1, -1), strict=True))


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_over_ice_are_physical(default_values, name):
    values, _ = default_values
    icy = (values["umask"] == 1) & (values["aice_h"] > 0)
    low, high = PHYSICAL[name]
    field = values[name][icy]
    assert low <= field.min() < field.max() <= high


def test_open_ocean_has_no_ice_at_all(default_values):
    values, _ = default_values
    ocean = values["umask"] == 1
    open_ocean = ocean & (values["aice_h"] == 0)
    assert not np.any(open_ocean & (values["ULAT"] > 75))
    assert np.all(open_ocean[0][ocean & (np.abs(values["ULAT"]) < 35)])
    for name in ("hi_h", "hs_h", "sice_h"):
        assert not values[name][open_ocean].any()
    assert values["sst_h"][open_ocean].max() < 36
    # Some of it lies where only `0 < aice` keeps it out of the clean samples.
    assert np.any(open_ocean & (values["ULAT"] > 40))


def test_a_file_without_the_attribute_tells_no_noise(tmp_path):
    path = tmp_path / "real.nc"
    netCDF4.Dataset(path, "w").close()
    assert read_noise_mse(path, "north") is None
    with pytest.raises(DataError, match=r"absent\.nc: cannot be read"):
        read_noise_mse(tmp_path / "absent.nc", "north")


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "history.nc"
    path.write_text("older")
    write_synthetic_history(path, seed=0, **SMALL)
    assert read_noise_mse(path, "north") > 0
    assert list(tmp_path.iterdir()) == [path]


def test_errors_are_one_line_and_leave_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for place in ("absent/history.nc", "file/history.nc", "folder"):
        with pytest.raises(OutputError, match="cannot be written") as caught:
            write_synthetic_history(tmp_path / place, seed=0, **SMALL)
        assert "\n" not in str(caught.value)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        write_synthetic_history(tmp_path / "history.nc", seed=0, **SMALL)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": 2**63}, {"num_latitudes": 15}, {"num_longitudes": 15}, {"num_times": 0}]
)
def test_wrong_arguments_are_named(tmp_path, wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(DataError, match=f"{name}={value}"):
        write_synthetic_history(tmp_path / "history.nc", **{"seed": 0, **wrong})
    assert not any(tmp_path.iterdir())
