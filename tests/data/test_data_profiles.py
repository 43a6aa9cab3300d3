"""Profiles, stations and trajectories: ragged arrays as CF has them, and places that move from one to the next."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from field_files import config_of, read_all, write_netcdf

from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION
from mpitrain.data.selection.coordinates import open_coordinates, places_of_levels
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError

SIZES = np.array([10, 20, 30, 40])
LATITUDE = np.array([-60.0, -20.0, 20.0, 60.0])
WHICH = np.repeat(np.arange(4), SIZES)
TEMPERATURE = LATITUDE[WHICH] + np.random.default_rng(20).normal(size=100)
OBS, PROFILE = ("obs",), ("profile",)
ATTRIBUTES = {
    "lat": {"units": "degrees_north", "standard_name": "latitude"},
    "lon": {"units": "degrees_east", "standard_name": "longitude"},
    "time": {"units": "days since 2000-01-01", "standard_name": "time"},
    "temp": {"units": "degC", "coordinates": "time lat lon"},
    "row_size": {"sample_dimension": "obs"},
    "profile_index": {"instance_dimension": "profile"},
}


def profiles(path: Path, order: np.ndarray | None = None, **more: object) -> Path:
    """Write four profiles: as counts, or in the `order` of observations as indices; NetCDF or Zarr by its end."""
    order = np.arange(100) if order is None else order
    says = {"profile_index": (OBS, WHICH[order].astype("i4"))} if path.stem == "indexed" else {
        "row_size": (PROFILE, SIZES.astype("i4"))
    }  # fmt: skip
    variables = {
        "lat": (PROFILE, LATITUDE), "lon": (PROFILE, 2 * LATITUDE), "time": (PROFILE, np.array([0.0, 31, 60, 91])),
        "temp": (OBS, TEMPERATURE[order]), "salt": (OBS, 35 + TEMPERATURE[order] / 100), **says, **more,
    }  # fmt: skip
    if path.suffix == ".nc":
        return write_netcdf(path, variables, **{name: ATTRIBUTES[name] for name in variables if name in ATTRIBUTES})
    data = xarray.Dataset({name: (*one, ATTRIBUTES.get(name, {})) for name, one in variables.items()})
    data = data.set_coords([]).reset_coords()
    data.to_zarr(path, consolidated=False)
    return path


def source_of(path: Path, inputs: str, *settings: str, target: str = "temp") -> SampleSource:
    names = f"variables.input_variables=[{inputs}]", f"variables.output_variables=[{target}]"
    return open_source(selection_of(config_of(path, *names, *settings)))


SHUFFLED = np.random.default_rng(1).permutation(100)


@pytest.mark.parametrize("target_bytes", [8 * 2**20, 40])
@pytest.mark.parametrize("name", ["counted.nc", "indexed.nc", "counted.zarr", "indexed.zarr"])
def test_values_of_profiles_are_those_of_their_observations(tmp_path, name, target_bytes):
    order = SHUFFLED if name.startswith("indexed") else np.arange(100)
    path, names = profiles(tmp_path / name, order), "variables.input_variables=[salt, lat, month]"
    config = config_of(path, names, "variables.output_variables=[temp]")
    found = read_all(open_source(selection_of(config), target_bytes=target_bytes))
    assert found.inputs[:, 1].tolist() == LATITUDE[WHICH[order]].tolist()
    assert found.inputs[:, 2].tolist() == (WHICH[order] + 1).tolist()
    assert found.targets[:, 0] == pytest.approx(TEMPERATURE[order], rel=1e-6)


def test_conditions_splits_and_places_are_those_of_the_observations(tmp_path):
    path = profiles(tmp_path / "counted.nc")
    northern = read_all(source_of(path, "salt", "domain.latitude_range=[0, 90]"))
    assert len(northern) == 70
    assert northern.targets.mean() == pytest.approx(TEMPERATURE[WHICH >= 2].mean(), rel=1e-6)
    assert len(read_all(source_of(path, "salt", "domain.mask=time >= 2000-03-01"))) == 70
    source = source_of(path, "salt")
    assert open_coordinates(source).at(np.arange(100))["lat"].tolist() == LATITUDE[WHICH].tolist()
    for split in ("time", "region"):
        settings = f"data.split={split}", "data.split_blocks=4", "data.validation_split=0.25"
        config = config_of(path, "variables.input_variables=[salt]", "variables.output_variables=[temp]", *settings)
        held = plan_split(config.data, source).roles(np.arange(100), 0) == VALIDATION
        assert [held[one == WHICH].all() or not held[one == WHICH].any() for one in range(4)] == [True] * 4
        assert 0 < held.sum() < 100


def test_samples_along_profiles_stay_along_profiles(tmp_path):
    depth = np.array([10.0, 20, 30, 40])
    path = profiles(tmp_path / "counted.nc", depth=(PROFILE, depth))
    assert read_all(source_of(path, "lat", target="depth")).targets[:, 0].tolist() == depth.tolist()
    with pytest.raises(DataError, match=r"'salt' \(obs=100\) has dimension obs, which samples of 'depth' lack"):
        source_of(path, "salt", target="depth")


def test_inputs_alone_lie_along_their_observations(tmp_path):
    path = profiles(tmp_path / "counted.nc")
    names = "variables.input_variables=[salt, lat]", "variables.output_variables=[unknown]"
    found = read_all(open_source(selection_of(config_of(path, *names)), num_predicted=1))
    assert found.inputs[:, 1].tolist() == LATITUDE[WHICH].tolist()


def test_trajectories_of_profiles_are_expanded_twice(tmp_path):
    ship = {"ship_index": (PROFILE, np.array([1, 0, 1, 0], "i4")), "speed": (("ship",), np.array([3.0, 7]))}
    path = tmp_path / "counted.nc"
    variables = {"temp": (OBS, TEMPERATURE), "row_size": (PROFILE, SIZES.astype("i4")), "lat": (PROFILE, LATITUDE)}
    named = {"row_size": ATTRIBUTES["row_size"], "ship_index": {"instance_dimension": "ship"}}
    write_netcdf(path, {**variables, **ship}, **named)
    assert read_all(source_of(path, "speed")).inputs[:, 0].tolist() == np.array([7.0, 3, 7, 3])[WHICH].tolist()


def test_ragged_arrays_of_hdf5_are_read_as_those_of_netcdf(tmp_path):
    path = profiles(tmp_path / "counted.nc")
    with h5py.File(path, "r") as file:
        assert file["row_size"].attrs["sample_dimension"] in (b"obs", "obs")
    (tmp_path / "f.h5").write_bytes(path.read_bytes())
    assert read_all(source_of(tmp_path / "f.h5", "lat")).inputs[:, 0].tolist() == LATITUDE[WHICH].tolist()


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("row_size", [10, 20, 30, 39], r"'row_size' counts 99 observations along 'obs', which has 100; correct"),
        ("row_size", [50, 60, -50, 40], r"'row_size' counts 100 observations"),
        ("profile_index", [*WHICH[:-1], 4], r"'profile_index' is 4 at observation 99, expected 0 to 3"),
        ("profile_index", [-1, *WHICH[1:]], r"'profile_index' is -1 at observation 0"),
    ],
)
def test_counts_and_indices_that_do_not_fit_are_refused(tmp_path, name, values, words):
    path = tmp_path / "f.nc"
    variables = {"temp": (OBS, TEMPERATURE), "lat": (PROFILE, LATITUDE)}
    along = PROFILE if name == "row_size" else OBS
    write_netcdf(path, {**variables, name: (along, np.array(values, "i4"))}, **{name: ATTRIBUTES[name]})
    with pytest.raises(DataError, match=words):
        source_of(path, "lat")


def test_runs_of_before_keep_what_they_had(tmp_path):
    path = profiles(tmp_path / "counted.nc")
    assert len(read_all(source_of(path, "salt, lat", "data.rules=1"))) == 400


NUM_PROFILES, NUM_LEVELS = 40, 15
FLOATS_AT = np.linspace(-9.25, 8.5, NUM_PROFILES)


def floats(path: Path, **dimensions: tuple[str, ...]) -> Path:
    depth = np.broadcast_to(10.0 * np.arange(NUM_LEVELS), (NUM_PROFILES, NUM_LEVELS))
    temp = 28 - depth / 10 - np.abs(FLOATS_AT)[:, None] / 5
    both, one = ("N_PROF", "N_LEVELS"), ("N_PROF",)
    variables = {
        "JULD": (one, 10.0 * np.arange(NUM_PROFILES)), "LATITUDE": (one, FLOATS_AT), "LONGITUDE": (one, FLOATS_AT / 9),
        "PRES": (both, depth), "TEMP": (both, temp), "PSAL": (both, 35 + temp / 50),
    }  # fmt: skip
    attributes = {
        "JULD": {"units": "days since 1950-01-01", "axis": "T"}, "LATITUDE": {"units": "degree_north", "axis": "Y"},
        "LONGITUDE": {"units": "degree_east", "axis": "X"}, "PRES": {"units": "decibar", "axis": "Z"},
    }  # fmt: skip
    return write_netcdf(path, variables, **attributes)


def test_profiles_that_move_are_held_out_whole_by_their_places(tmp_path):
    path = floats(tmp_path / "f.nc")
    source = source_of(path, "PRES, TEMP", target="PSAL")
    places = places_of_levels(source)
    assert places[:, 0].tolist() == FLOATS_AT.tolist()
    settings = "data.split=region", "data.split_blocks=16", "data.validation_split=0.25"
    config = config_of(path, "variables.input_variables=[TEMP]", "variables.output_variables=[PSAL]", *settings)
    held = (plan_split(config.data, source).roles(np.arange(source.num_points), 0) == VALIDATION).reshape(
        NUM_PROFILES, NUM_LEVELS
    )
    assert (held.all(axis=1) | ~held.any(axis=1)).all()
    assert 0 < held[:, 0].sum() < NUM_PROFILES
    steps = np.flatnonzero(np.diff(held[:, 0].astype(int)))
    assert len(steps) < 10, "profiles side by side are in one block"


def test_stations_of_one_file_each_have_their_own_places(tmp_path):
    for number, latitude in enumerate((50.0, 60.0)):
        variables = {
            "time": (("time",), np.arange(5.0)), "lat": ((), np.array(latitude)), "lon": ((), np.array(0.0)),
            "x": (("time",), np.arange(5.0)), "y": (("time",), np.arange(5.0)),
        }  # fmt: skip
        named = {name: ATTRIBUTES[name] for name in ("lat", "lon", "time")}
        coordinates = {"coordinates": "lat lon"}
        write_netcdf(tmp_path / f"{number}.nc", variables, **named, x=coordinates, y=coordinates)
    source = source_of(tmp_path / "?.nc", "x", target="y")
    assert places_of_levels(source).tolist() == [[50.0, 0.0]] * 5 + [[60.0, 0.0]] * 5


def test_trajectories_of_two_dimensions_are_rows_with_their_own_times(tmp_path):
    both, ship = ("trajectory", "obs"), ("trajectory",)
    times = np.array([[0.0, 1, 2, 3], [100, 101, 102, np.nan], [31, 32, np.nan, np.nan]])
    values = np.array([[0.0, 1, 2, 3], [10, 11, 12, np.nan], [20, 21, np.nan, np.nan]])
    variables = {
        "time": (both, times), "x": (both, values), "y": (both, values), "name": (ship, np.arange(3)),
        "speed": (ship, np.array([5.0, 6, 7])), "obs": (("obs",), np.arange(4)), "lat": (both, values),
        "lon": (both, values),
    }  # fmt: skip
    attributes = {"name": {"cf_role": "trajectory_id"}, "time": {"units": "days since 2000-01-01"},
                  "lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}  # fmt: skip
    path = write_netcdf(tmp_path / "f.nc", variables, **attributes)
    found = read_all(source_of(path, "x, speed, month", target="y"))
    is_there = np.isfinite(found.targets[:, 0])
    assert found.targets[is_there, 0].tolist() == values[np.isfinite(values)].tolist()
    assert found.inputs[is_there, 1].tolist() == [5, 5, 5, 5, 6, 6, 6, 7, 7]
    assert found.inputs[is_there, 2].tolist() == [1, 1, 1, 1, 4, 4, 4, 2, 2]
    lagged = read_all(source_of(path, "'x[time-1]'", target="y"))
    assert (lagged.targets - lagged.inputs == 1).all()
    assert len(lagged) == 6
    southern = read_all(source_of(path, "x", "domain.latitude_range=[9, 90]", target="y"))
    assert southern.targets[:, 0].tolist() == [10, 11, 12, 20, 21]
    swath = write_netcdf(
        tmp_path / "swath.nc", {name: variables[name] for name in ("time", "x", "y")}, time=attributes["time"]
    )
    assert source_of(swath, "x", target="y").grid_shape != (1, 1)
