"""Predictions have the data's own coordinates of time: beside a dimension's, single ones, series, depths as samples."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
from predicting import config_of, mlp, predict_played, save

from mpitrain.inference import maps
from mpitrain.inference.maps import draw_prediction
from mpitrain.inference.netcdf_output import GrowingFile, OutputVariable

SETTINGS = ("variables.input_variables=[x]", "variables.output_variables=[y]", "domain.mask_mode=all")
SIZES = {"t": 3, "step": 3, "lat": 2, "lon": 4, "n": 5, "depth": 3, "bnds": 2, "one": 1, "y": 3, "y_predicted": 3,
         "j": 3, "i": 5}  # fmt: skip
DAYS = {"units": "days since 2000-01-01"}
NORTH, EAST = {"units": "degrees_north", "standard_name": "latitude"}, {"units": "degrees_east"}


def predict(
    folder: Path,
    dimensions: tuple[str, ...],
    coordinates: dict,
    *settings: str,
    named: str = "",
    mapping: str = "",
    inputs: tuple[str, ...] = ("x",),
    targets: tuple[str, ...] = ("y",),
) -> netCDF4.Dataset:
    """Write `coordinates` (name: (dimensions, attributes)) and x and y, predict y, and return the open prediction."""
    model = save(mlp(len(inputs), len(targets)), folder / "m.pt", inputs, targets)
    with netCDF4.Dataset(str(folder / "f.nc"), "w") as file:
        for name in dict.fromkeys((*dimensions, *(one for along, _ in coordinates.values() for one in along))):
            file.createDimension(name, SIZES[name])
        for name, (along, attributes) in coordinates.items():
            variable = file.createVariable(name, "f8", along)
            variable.setncatts(attributes)
            variable[...] = 1 + np.arange(np.prod([SIZES[one] for one in along])).reshape(variable.shape)
        for name in "xy":
            variable = file.createVariable(name, "f4", dimensions)
            variable[...] = np.arange(variable.size, dtype="f4").reshape(variable.shape)
            if named:
                variable.coordinates = named
            if mapping:
                variable.grid_mapping = mapping
    predict_played(model, config_of(folder / "f.nc", *SETTINGS, *settings), folder / "p.nc")
    return netCDF4.Dataset(str(folder / "p.nc"))


def assert_same_as_data(folder: Path, found: netCDF4.Dataset, *names: str) -> None:
    with netCDF4.Dataset(str(folder / "f.nc")) as data:
        for name in names:
            assert found[name].dimensions == data[name].dimensions, name
            np.testing.assert_array_equal(found[name][...], data[name][...])
            assert {key: found[name].getncattr(key) for key in data[name].ncattrs() if key != "bounds"} == {
                key: data[name].getncattr(key) for key in data[name].ncattrs() if key != "bounds"
            }


def test_a_time_beside_the_dimension_s_own_keeps_its_name(tmp_path: Path) -> None:
    """As of NEMO, whose time_counter has a time_centered, and of a forecast, whose step has a valid_time."""
    centre = {**DAYS, "standard_name": "time", "long_name": "middle", "calendar": "noleap"}
    coordinates = {"t": (("t",), {"long_name": "number"}), "centre": (("t",), centre), "lat": (("lat",), NORTH),
                   "lon": (("lon",), EAST)}  # fmt: skip
    with predict(tmp_path, ("t", "lat", "lon"), coordinates) as found:
        assert_same_as_data(tmp_path, found, "t", "centre")
        assert found["y_predicted"].dimensions == ("t", "lat", "lon")
        assert "centre" in found["y_predicted"].coordinates.split()


def test_the_start_of_a_forecast_and_its_valid_times_both_come_back(tmp_path: Path) -> None:
    valid = {**DAYS, "standard_name": "time", "long_name": "valid", "calendar": "standard"}
    coordinates = {
        "time": ((), {**DAYS, "long_name": "start"}), "step": (("step",), {"standard_name": "forecast_period"}),
        "valid_time": (("step",), valid), "lat": (("lat",), NORTH), "lon": (("lon",), EAST),
    }  # fmt: skip
    with predict(tmp_path, ("step", "lat", "lon"), coordinates, named="time step valid_time") as found:
        assert_same_as_data(tmp_path, found, "time", "step", "valid_time")
        assert found["y_predicted"].dimensions == ("step", "lat", "lon")
        assert {"time", "valid_time"} <= set(found["y_predicted"].coordinates.split())


@pytest.mark.parametrize("dimension", ["t", "n"])
def test_a_series_lies_along_its_own_dimension(tmp_path: Path, dimension: str) -> None:
    name = "t" if dimension == "t" else "when"
    attributes = {**DAYS, "standard_name": "time", "long_name": "time", "calendar": "standard"}
    with predict(tmp_path, (dimension,), {name: ((dimension,), attributes)}) as found:
        assert found["y_predicted"].dimensions == (dimension,)
        assert "grid_index" not in found.variables
        assert_same_as_data(tmp_path, found, name)


def test_depths_that_are_samples_stay_depths(tmp_path: Path) -> None:
    depth = {"units": "m", "standard_name": "depth", "long_name": "depth", "positive": "down", "axis": "Z"}
    coordinates = {"depth": (("depth",), depth), "lat": (("lat",), NORTH), "lon": (("lon",), EAST)}
    with predict(tmp_path, ("depth", "lat", "lon"), coordinates, "data.coordinates={time: depth}") as found:
        assert_same_as_data(tmp_path, found, "depth")
        assert [name for name in found.variables if "T" in getattr(found[name], "axis", "")] == []


def test_what_has_no_dimension_is_a_row(tmp_path: Path) -> None:
    with predict(tmp_path, (), {}) as found:
        assert found["y_predicted"].dimensions == ("n",)
    assert draw_prediction(tmp_path / "p.nc", tmp_path / "maps")


def test_bounds_of_a_single_level_come_back_whole(tmp_path: Path) -> None:
    depth = {"units": "m", "positive": "down", "bounds": "depth_bounds"}
    coordinates = {"level": ((), depth), "depth_bounds": (("bnds",), {}), "lat": (("lat",), NORTH),
                   "lon": (("lon",), EAST)}  # fmt: skip
    with predict(tmp_path, ("lat", "lon"), coordinates, named="level") as found:
        assert_same_as_data(tmp_path, found, "level", "depth_bounds")
        assert found["depth_bounds"][...].tolist() == [1, 2]
        assert found["level"].bounds == "depth_bounds"


def test_bounds_follow_a_single_level_whose_dimension_is_one_of_corners_too(tmp_path: Path) -> None:
    coordinates = {"lat": (("lat",), {**NORTH, "bounds": "lat_bounds"}), "lat_bounds": (("lat", "one"), {}),
                   "one": (("one",), {"units": "m", "positive": "down", "bounds": "depths"}),
                   "depths": (("one", "bnds"), {}), "lon": (("lon",), EAST)}  # fmt: skip
    with predict(tmp_path, ("one", "lat", "lon"), coordinates, named="one") as found:
        assert_same_as_data(tmp_path, found, "lat_bounds")
        assert (found["one"].dimensions, found["depths"].dimensions) == ((), ("bnds",))
        assert found["depths"][...].tolist() == [1, 2]


def test_a_coordinate_that_is_named_as_the_mapping_too_keeps_its_number(tmp_path: Path) -> None:
    coordinates = {"height": ((), {"units": "m", "positive": "up"}), "lat": (("lat",), NORTH), "lon": (("lon",), EAST)}
    with predict(tmp_path, ("lat", "lon"), coordinates, named="height", mapping="height") as found:
        assert found["y_predicted"].grid_mapping == "height"
        assert_same_as_data(tmp_path, found, "height")
        assert found["height"].dtype == np.float64


@pytest.mark.parametrize("dimension", ["y", "y_predicted"])
def test_a_level_axis_gives_way_to_the_variable_of_all_levels(tmp_path: Path, dimension: str) -> None:
    coordinates = {"lat": (("lat",), NORTH), "lon": (("lon",), EAST)}
    targets = tuple(f"y[{dimension}={number}]" for number in range(3))
    settings = f"variables.output_variables=[{', '.join(map(repr, targets))}]"
    of_input = f"x[{dimension}=0]"
    given = (f"variables.input_variables=['{of_input}']", settings)
    with predict(
        tmp_path, (dimension, "lat", "lon"), coordinates, *given, inputs=(of_input,), targets=targets
    ) as found:
        assert found["y_predicted"].dimensions == (f"{dimension}_", "lat", "lon")
        assert found[f"{dimension}_"][...].tolist() == [0, 1, 2]


def test_of_a_target_that_is_a_place_one_variable_is_both(tmp_path: Path) -> None:
    coordinates = {"lat": (("j", "i"), NORTH), "lon": (("j", "i"), EAST)}
    given = ("variables.output_variables=[lat]",)
    predict(tmp_path, ("j", "i"), coordinates, *given, named="lat lon", targets=("lat",)).close()
    predict_played(tmp_path / "m.pt", config_of(tmp_path / "f.nc", *SETTINGS, *given), tmp_path / "rows.nc",
                   layout="rows")  # fmt: skip
    for name in ("p.nc", "rows.nc"):
        with netCDF4.Dataset(str(tmp_path / name)) as found:
            np.testing.assert_array_equal(found["lat"][...].ravel(), 1 + np.arange(15))
            difference = found["lat_predicted"][...] - found["lat"][...]
            np.testing.assert_allclose(found["lat_error"][...], difference, rtol=1e-5)


def test_an_axis_gives_way_to_what_lies_along_one_before_it(tmp_path: Path) -> None:
    """Of targets of two variables, whose levels are `t`, with a coordinate `depth`, and `depth`."""
    coordinates = {
        "t": (("t",), {"units": "m", "positive": "down", "axis": "Z"}), "lat": (("lat",), NORTH),
        "depth": (("t",), {"units": "m"}), "lon": (("lon",), EAST), "z": (("depth", "lat", "lon"), {}),
    }  # fmt: skip
    targets = ("y[t=1]", "y[t=2]", "z[depth=0]", "z[depth=2]")
    given = ("variables.input_variables=['x[t=1]']", f"variables.output_variables=[{', '.join(map(repr, targets))}]")
    with predict(
        tmp_path, ("t", "lat", "lon"), coordinates, *given, named="depth", inputs=("x[t=1]",), targets=targets
    ) as found:
        assert found["y_predicted"].dimensions == ("t", "lat", "lon")
        assert found["z_predicted"].dimensions == ("depth_", "lat", "lon")
        assert (found["depth"].dimensions, found["depth"][...].tolist()) == (("t",), [1, 2])
        assert found["depth_"][...].tolist() == [0, 2]  # positions: what is called depth does not lie along it


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_while_coordinates_are_written_leaves_nothing(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        assert list(tmp_path.iterdir())  # the temporary file is there
        raise error

    monkeypatch.setattr(GrowingFile, "_write", fail)
    with pytest.raises(error):
        GrowingFile(tmp_path / "p.nc", {"n": 1}, [OutputVariable("n", ("n",), "f8", values=np.zeros(1))], {})
    assert list(tmp_path.iterdir()) == []


def test_a_map_is_of_the_first_level_with_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lagged inputs leave the first levels empty; one level alone is a map along the file's own rows and columns."""
    drawn = []
    monkeypatch.setattr(maps, "draw_map", lambda values, places, look, *_: drawn.append((values, places, look.title)))
    monkeypatch.setattr(maps, "render_png", lambda _: b"")
    monkeypatch.setattr(maps, "_scatter", lambda *_: b"")
    values = np.full((3, 4, 2), np.nan)
    values[2, 1] = 1.0, 2.0
    with netCDF4.Dataset(str(tmp_path / "p.nc"), "w") as file:
        for name, size in (("t", 3), ("lon", 4), ("lat", 2)):
            file.createDimension(name, size)
        for name, units in (("lon", "degrees_east"), ("lat", "degrees_north")):
            file.createVariable(name, "f8", (name,)).units = units
            file[name][:] = 10 * np.arange(len(file[name]))
        for name in ("y", "y_predicted"):
            file.createVariable(name, "f4", ("t", "lon", "lat"), fill_value=-9)[...] = np.nan_to_num(values, nan=-9)
    draw_prediction(tmp_path / "p.nc", tmp_path / "maps")
    (answer, (east, north), title), _ = drawn
    assert title == "y, predicted, time level 3"
    assert (answer[:, 1].tolist(), east[0].tolist(), north[:, 0].tolist()) == ([1, 2], [0, 10, 20, 30], [0, 10])
