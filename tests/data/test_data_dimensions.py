"""Dimensions match by name: variables lie along the dimensions of the targets, and are repeated along the rest."""

from __future__ import annotations

from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from field_files import config_of, read_all, write_netcdf

from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

TIMES = {"units": "days since 2000-01-01"}


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="f4").reshape(shape)


def opened(path: Path, *settings: str, inputs: str = "[x]", predicted: int | None = None):
    names = f"variables.input_variables={inputs}", "variables.output_variables=[y]"
    return open_source(selection_of(config_of(path, *names, *settings)), num_predicted=predicted)


def inputs_of(path: Path, *settings: str, inputs: str = "[x]") -> np.ndarray:
    return read_all(opened(path, *settings, inputs=inputs)).inputs


@pytest.mark.parametrize(
    ("own", "target"),
    [("profile", ("obs",)), ("time", ("reports",)), ("crop", ("time", "place")), ("eta_u", ("time", "eta_rho"))],
)
def test_an_input_along_another_dimension_is_refused_by_both_names(tmp_path, own, target):
    variables = {"x": ((own,), ramp(4)), "y": (target, ramp(*(4, 4)[: len(target)]))}
    path = write_netcdf(tmp_path / "f.nc", variables)
    with pytest.raises(DataError, match=rf"variable 'x' \({own}=4\) has dimension {own}, which samples of 'y' lack"):
        opened(path)
    assert len(inputs_of(path, f"data.dimensions={{{own}: {target[-1]}}}")) == 4 ** len(target)


@pytest.mark.parametrize("samples", ["points", "fields"])
def test_a_grid_beside_the_target_s_is_refused_and_so_are_masks_and_areas_on_it(tmp_path, samples):
    rho, u = ("time", "eta_rho", "xi_rho"), ("time", "eta_u", "xi_u")
    variables = {"x": (u, ramp(2, 3, 3)), "y": (rho, ramp(2, 3, 3)), "area_u": (u[1:], 1 + ramp(3, 3))}
    variables |= {"z": (rho, ramp(2, 3, 3)), "mask_u": (u[1:], np.ones((3, 3), "f4"))}
    path = write_netcdf(tmp_path / "f.nc", variables)
    asked = f"data.samples={samples}"
    for more in (["x"], ["z", "data.area_variable=area_u", "data.area_weighted=true"], ["z", "domain.mask=mask_u > 0"]):
        with pytest.raises(
            DataError, match=r"has dimension eta_u, .* data.dimensions={eta_u: eta_rho, xi_u: xi_rho} if"
        ):
            opened(path, asked, *more[1:], inputs=f"[{more[0]}]")
    both = "data.dimensions={eta_u: eta_rho, xi_u: xi_rho}"
    samples_read = read_all(opened(path, asked, both))
    assert np.array_equal(samples_read.inputs, samples_read.targets)


def test_an_input_lies_along_the_dimension_of_its_name_wherever_that_stands(tmp_path):
    """Of a square grid without names that tell, which either order would fit."""
    variables = {"y": (("t", "a", "b"), ramp(2, 3, 3)), "turned": (("b", "t", "a"), ramp(2, 3, 3).transpose(2, 0, 1))}
    variables |= {"rows": (("a",), ramp(3)), "columns": (("b",), ramp(3)), "times": (("t",), ramp(2))}
    path = write_netcdf(tmp_path / "f.nc", variables)
    t, a, b = np.indices((2, 3, 3)).reshape(3, -1)
    found = inputs_of(path, inputs="[turned, rows, columns, times]")
    assert np.array_equal(found, np.stack([np.arange(18), a, b, t], axis=1))


SAME = {"units": "degrees_north", "standard_name": "latitude"}


@pytest.mark.parametrize(
    ("attributes", "first", "is_one"),
    [
        (SAME, 10.0, True),
        ({"units": "degrees_north"}, 10.0, False),
        (SAME, 10.5, False),
        ({**SAME, "c_grid_axis_shift": 0.5}, 10.0, False),
        ({"standard_name": "latitude", "units": "degrees"}, 10.0, False),
    ],
)
def test_dimensions_with_equal_coordinates_are_one_and_a_line_says_so(tmp_path, attributes, first, is_one):
    variables = {"lat": (("lat",), 10.0 + np.arange(3.0)), "lat_98": (("lat_98",), first + np.arange(3.0))}
    variables |= {"x": (("lat_98",), ramp(3)), "y": (("time", "lat"), ramp(2, 3))}
    path = write_netcdf(tmp_path / "f.nc", variables, lat=SAME, lat_98=attributes)
    if not is_one:
        with pytest.raises(DataError, match="has dimension lat_98, which samples"):
            opened(path)
        return
    source = opened(path)
    assert f"{path}: dimension lat_98 is used as lat: their coordinates are equal" in source.notices
    assert read_all(source).inputs[:, 0].tolist() == [0, 1, 2] * 2


def test_coordinates_without_a_kind_make_no_dimensions_one(tmp_path):
    """As the numbers of cells and of their sides."""
    variables = {"i": (("i",), np.arange(3.0)), "i_g": (("i_g",), np.arange(3.0))}
    variables |= {"x": (("i_g",), ramp(3)), "y": (("i",), ramp(3))}
    with pytest.raises(DataError, match="has dimension i_g"):
        opened(write_netcdf(tmp_path / "f.nc", variables))


def test_a_further_dimension_is_refused_but_for_one_position(tmp_path):
    variables = {"x": (("time", "lat", "lon"), ramp(2, 3, 4)), "y": (("lat", "lon"), ramp(3, 4))}
    variables |= {"one": (("time_2", "lat", "lon"), ramp(1, 3, 4))}
    path = write_netcdf(tmp_path / "f.nc", variables, time=TIMES)
    with pytest.raises(
        DataError, match=r"dimension time, which samples of 'y' lack: they lie along lat, lon; .*\[time=0\]$"
    ):
        opened(path)
    assert inputs_of(path, inputs="['x[time=1]', one]").tolist() == [[12 + n, n] for n in range(12)]


def test_dimensions_without_a_name_match_by_place_and_size(tmp_path):
    np.savez(tmp_path / "f.npz", x=ramp(2, 3), y=ramp(2, 3), row=ramp(2, 1))
    assert inputs_of(tmp_path / "f.npz", inputs="[x, row]").tolist() == [[n, n // 3] for n in range(6)]


def test_targets_have_their_dimensions_together(tmp_path):
    variables = {
        "x": (("time", "lat", "lon"), ramp(2, 3, 4)),
        "y": (("time",), ramp(2)),
        "z": (("lat", "lon"), ramp(3, 4)),
    }
    path = write_netcdf(tmp_path / "f.nc", variables, time=TIMES)
    source = opened(path, "variables.output_variables=[y, z]")
    assert f"{path}: no target has all of the dimensions lat, lon, time: samples are all combinations" in source.notices
    assert read_all(source).targets.tolist() == [[n // 12, n % 12] for n in range(24)]


def test_without_targets_samples_lie_along_the_dimensions_of_the_inputs_together(tmp_path):
    variables = {"x": (("time", "lat", "lon"), ramp(2, 3, 4)), "z": (("lat", "lon"), ramp(3, 4))}
    variables |= {"index": (("time",), ramp(2)), "w": (("profile",), ramp(4))}
    path = write_netcdf(tmp_path / "f.nc", variables, time=TIMES)
    for inputs in ("[z, x]", "[index, z]"):
        assert len(read_all(opened(path, inputs=inputs, predicted=1))) == 24
    with pytest.raises(
        DataError, match=r"'w' .* has dimension profile, .* of 'x' lack: they lie along time, lat, lon;"
    ):
        opened(path, inputs="[w, x]", predicted=1)


def test_runs_of_before_match_by_size(tmp_path):
    path = write_netcdf(tmp_path / "f.nc", {"x": (("profile",), ramp(4)), "y": (("obs",), ramp(4))})
    assert len(inputs_of(path, "data.rules=1")) == 4


def test_places_of_another_grid_are_not_those_of_the_samples(tmp_path):
    variables = {"x": (("time", "a", "b"), ramp(2, 3, 4)), "y": (("time", "a", "b"), ramp(2, 3, 4))}
    variables |= {name: (("c", "d"), ramp(3, 4)) for name in ("lat", "lon")}
    path = write_netcdf(tmp_path / "f.nc", variables, time=TIMES)
    assert open_coordinates(opened(path)).stored == {}
    named = opened(path, "data.coordinates={latitude: lat}")
    with pytest.raises(DataError, match=r"'lat' \(c=3, d=4\), which data.coordinates names, is not on the grid of 'y'"):
        open_coordinates(named)
    both = opened(path, "data.coordinates={latitude: lat}", "data.dimensions={c: a, d: b}")
    assert open_coordinates(both).stored["lat"].info.name == "lat"


def test_lines_on_dimensions_come_once_for_all_files(tmp_path):
    for number in range(3):
        variables = {"lat": (("lat",), np.arange(3.0)), "lat_98": (("lat_98",), np.arange(3.0))}
        variables |= {"x": (("lat_98",), ramp(3)), "y": (("time", "lat"), ramp(2, 3))}
        write_netcdf(tmp_path / f"{number}.nc", variables, lat=SAME, lat_98=SAME)
    lines = [line for line in opened(tmp_path / "?.nc").notices if "is used as lat" in line]
    assert lines == [f"{tmp_path / '0.nc'}: dimension lat_98 is used as lat: their coordinates are equal"]


def test_dimensions_of_one_name_in_two_groups_are_one_only_with_equal_coordinates(tmp_path):
    path = tmp_path / "f.nc"
    with netCDF4.Dataset(str(path), "w") as file:
        for group, first in (("a", 0.0), ("b", 100.0), ("c", 100.0)):
            own = file.createGroup(group)
            own.createDimension("time", 4)
            own.createVariable("time", "f8", ("time",)).setncatts(TIMES)
            own["time"][:] = first + np.arange(4.0)
            own.createVariable(group, "f4", ("time",))[:] = ramp(4)
    targets = "variables.output_variables=[c]"
    assert len(inputs_of(path, targets, inputs="[b]")) == 4
    with pytest.raises(DataError, match=r"'a/a' .* has dimension time, which samples of 'c/c' lack"):
        opened(path, targets, inputs="[a]")


def test_the_times_of_samples_are_those_of_the_targets(tmp_path):
    """Beside a single time of an input that stands first, and equal numbers in another calendar."""
    times = {"t": (("t",), np.zeros(1)), "time_counter": (("time_counter",), np.arange(5.0))}
    variables = {"x": (("t", "a", "b"), ramp(1, 2, 3)), "y": (("time_counter", "a", "b"), ramp(5, 2, 3))}
    path = write_netcdf(tmp_path / "f.nc", times | variables, t=TIMES, time_counter=TIMES)
    assert opened(path).files[0].time.name == "time_counter"
    times["t"] = (("t",), np.arange(5.0))
    variables = {"x": (("t",), ramp(5)), "y": (("time_counter",), ramp(5))}
    other = write_netcdf(tmp_path / "g.nc", times | variables, t={**TIMES, "calendar": "noleap"}, time_counter=TIMES)
    with pytest.raises(DataError, match="has dimension t, which samples of 'y' lack"):
        opened(other)


@pytest.mark.parametrize(
    ("own", "target"),
    [
        (("fakeDim0", "fakeDim1"), ("fakeDim2", "fakeDim3")),
        (("phony_dim_0",), ("phony_dim_1",)),
        (("n", "n"), ("n", "n")),
    ],
)
def test_names_that_libraries_make_up_and_names_that_stand_twice_are_none(tmp_path, own, target):
    shape = (3,) * len(own)
    path = write_netcdf(tmp_path / "f.nc", {"x": (own, ramp(*shape)), "y": (target, ramp(*shape))})
    found = read_all(opened(path))
    assert np.array_equal(found.inputs, found.targets)


def test_the_scale_of_an_hdf5_dimension_names_it_and_not_its_label(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["lat"], file["y"] = np.arange(3.0), ramp(3, 4)
        file["lat"].make_scale("lat")
        file["y"].dims[0].label = "latitude"
        file["y"].dims[0].attach_scale(file["lat"])
    assert inputs_of(tmp_path / "f.h5", inputs="[lat]")[:, 0].tolist() == [n // 4 for n in range(12)]


def test_levels_that_are_samples_have_two_names_by_the_user_s_word(tmp_path):
    variables = {"x": (("depth_2", "lat", "lon"), ramp(4, 2, 3)), "y": (("depth", "lat", "lon"), ramp(4, 2, 3))}
    variables |= {"depth": (("depth",), np.arange(4.0))}
    path = write_netcdf(tmp_path / "f.nc", variables, depth={"positive": "down", "units": "m"})
    settings = "data.coordinates={time: depth}", "data.dimensions={depth_2: depth}"
    assert len(inputs_of(path, *settings)) == 24
