"""Axes and coordinates by the CF conventions and the habits of models: the kinds of files that cf_xarray knows.

Each kind is a file of `x` and `y`, read as a run reads it. Expected: what each dimension is taken for (t, j, i; . for a
level), and the variables that are latitude, longitude and time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, ramp, write_netcdf

from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

NORTH, EAST = {"units": "degrees_north"}, {"units": "degrees_east"}
DAYS = {"units": "days since 2000-01-01"}
SIZES = {"time": 2, "t": 2, "z": 2, "q": 2, "b": 3, "a": 4, "obs": 6}


def source_of(path: Path, dimensions: tuple[str, ...], coordinates: dict, named: str = "", level: str = ""):
    """Write `coordinates` (name: (dimensions, attributes)), `x` and `y`, which names `named`, and open the file."""
    every = {**coordinates, **dict.fromkeys("xy", (dimensions, {"coordinates": named} if named else {}))}
    values = {
        name: (along, ramp(0, tuple(SIZES.get(one, len(one)) for one in along))) for name, (along, _) in every.items()
    }
    write_netcdf(path, values, "", None, **{name: attributes for name, (_, attributes) in every.items()})
    names = f"variables.input_variables=['x{level}']", f"variables.output_variables=['y{level}']"
    return open_source(selection_of(config_of(path, *names)))


def taken_for(source) -> str:
    (access, *_) = source.files[0].variables.values()
    letters = dict(zip(access.axes.order, "tji", strict=True))
    return "".join(letters.get(axis, ".") for axis in range(len(access.info.shape)))


def own(**attributes: dict) -> dict:
    """Coordinate variables, each called as its dimension is."""
    return {name: ((name,), one) for name, one in attributes.items()}


AXES = {
    "axis": {"z": {"axis": "Z"}, "b": {"axis": "Y"}, "a": {"axis": "X"}},
    "GFDL": {"z": {"cartesian_axis": "Z"}, "b": {"cartesian_axis": "Y"}, "a": {"cartesian_axis": "X"}},
    "GrADS": {"z": {"grads_dim": "z"}, "b": {"grads_dim": "y"}, "a": {"grads_dim": "x"}},
    "netCDF-Java": {"z": {"_CoordinateAxisType": "Pressure"}, "b": {"_CoordinateAxisType": "Lat"},
                    "a": {"_CoordinateAxisType": "Lon"}},
    "long names": {"z": {"long_name": "Air pressure"}, "b": {"long_name": "latitude"}, "a": {"long_name": "longitude"}},
    "ROMS's s": {"z": {"standard_name": "ocean_s_coordinate_g2"}, "b": NORTH, "a": EAST},
    "a hybrid one": {"z": {"standard_name": "atmosphere_hybrid_sigma_pressure_coordinate"}, "b": NORTH, "a": EAST},
    "pressure": {"z": {"units": "hPa"}, "b": NORTH, "a": EAST},
    "sigma": {"z": {"units": "sigma_level"}, "b": NORTH, "a": EAST},
    "positive": {"z": {"positive": "down"}, "b": NORTH, "a": EAST},
    "a lead": {"z": {"standard_name": "forecast_period", "units": "hours"}, "b": NORTH, "a": EAST},
    "members": {"z": {"standard_name": "realization"}, "b": NORTH, "a": EAST},
}  # fmt: skip


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize("order", [("t", "z", "b", "a"), ("z", "b", "a"), ("a", "b", "z")])
def test_a_level_is_asked_for_and_found_by_its_name(tmp_path: Path, kind: str, order: tuple[str, ...]) -> None:
    # Dimensions whose names say nothing: `t` is usual.
    names = {"t": "t", "z": "level_a", "b": "level_b", "a": "level_c"}
    coordinates = own(**{names[one]: attributes for one, attributes in AXES[kind].items()})
    dimensions = tuple(names[one] for one in order)
    with pytest.raises(DataError, match=r"dimension level_a of size 7 .*x\[level_a=0\]"):
        source_of(tmp_path / "f.nc", dimensions, coordinates)
    source = source_of(tmp_path / "f.nc", dimensions, coordinates, level="[level_a=0]")
    assert taken_for(source) == "".join({"t": "t", "z": ".", "b": "j", "a": "i"}[one] for one in order)


T_FIRST = {"TLONG": EAST, "TLAT": NORTH, "ULONG": EAST, "ULAT": NORTH}
U_FIRST = {"ULONG": EAST, "ULAT": NORTH, "TLONG": EAST, "TLAT": NORTH}
RHO_LAST = {"lon_u": EAST, "lat_u": NORTH, "lon_rho": EAST, "lat_rho": NORTH}
STANDARD = {"one": {"standard_name": "latitude"}, "two": {"standard_name": "longitude"}}
PLACES = {
    "POP's T grid": ("TLONG TLAT", ("time", "b", "a"), U_FIRST, ("TLAT", "TLONG")),
    "POP's U grid": ("ULONG ULAT", ("time", "b", "a"), T_FIRST, ("ULAT", "ULONG")),
    "ROMS": ("lon_rho lat_rho ocean_time", ("time", "b", "a"), RHO_LAST, ("lat_rho", "lon_rho")),
    "standard names": ("", ("a", "b"), STANDARD, ("one", "two")),
}


@pytest.mark.parametrize("kind", PLACES)
def test_places_are_those_of_the_variable(tmp_path: Path, kind: str) -> None:
    named, dimensions, attributes, expected = PLACES[kind]
    coordinates = {name: (dimensions[-2:], one) for name, one in attributes.items()}
    found = open_coordinates(source_of(tmp_path / "f.nc", dimensions, coordinates, named)).stored
    assert (found["lat"].info.name, found["lon"].info.name) == expected


@pytest.mark.parametrize("names", [("lat_u", "lon_u"), ("b", "a")])
def test_places_of_another_grid_are_not_taken(tmp_path: Path, names: tuple[str, str]) -> None:
    """Without the attribute `coordinates`: those along the dimensions of the variable, whatever comes first."""
    other = {"lat": (("obs",), NORTH), "lon": (("obs",), EAST)}
    along = [("b", "a")] * 2 if names[0] == "lat_u" else [("b",), ("a",)]
    mine = {name: (along[number], (NORTH, EAST)[number]) for number, name in enumerate(names)}
    found = open_coordinates(source_of(tmp_path / "f.nc", ("t", "b", "a"), {**other, **mine})).stored
    assert (found["lat"].info.name, found["lon"].info.name) == names


@pytest.mark.parametrize("depth", [{"standard_name": "depth", "positive": "down"}, {"units": "dbar"}])
def test_samples_at_a_depth_each_are_no_level(tmp_path: Path, depth: dict) -> None:
    source = source_of(tmp_path / "f.nc", ("obs",), {"depth": (("obs",), depth)})
    assert (source.num_points, taken_for(source)) == (6, "i")


def test_a_pressure_beside_the_samples_is_no_axis(tmp_path: Path) -> None:
    """What a station measures has units of pressure as well, and is nobody's coordinate."""
    source = source_of(tmp_path / "f.nc", ("t", "obs"), {"pressure": (("obs",), {"units": "hPa"})})
    assert taken_for(source) == "ti"


def test_a_forecast_s_time_is_its_start(tmp_path: Path) -> None:
    coordinates = {
        **own(t={**DAYS, "standard_name": "forecast_reference_time"}, z={"standard_name": "forecast_period"}),
        "valid_time": (("t", "z"), {**DAYS, "standard_name": "time"}), **own(b=NORTH, a=EAST),
    }  # fmt: skip
    source = source_of(tmp_path / "f.nc", ("t", "z", "b", "a"), coordinates, level="[z=1]")
    assert (taken_for(source), open_coordinates(source).time_name) == ("t.ji", "t")


def test_a_guessed_level_is_no_time(tmp_path: Path) -> None:
    """No time of a prediction has units of pressure."""
    found = open_coordinates(source_of(tmp_path / "f.nc", ("q", "b", "a"), own(q={"units": "m"}, b=NORTH, a=EAST)))
    assert (found.times, found.time_name) == (None, "")
    assert np.isfinite(found.grids["lat"]).all()
