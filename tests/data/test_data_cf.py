"""Axes and coordinates by the CF conventions and the habits of models: the kinds of files that cf_xarray knows.

Each kind is a file of `x` and `y`, read as a run reads it. Expected: what each dimension is taken for (t, j, i; . for a
level), and the variables that are latitude, longitude and time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, ramp, write_netcdf

from mpitrain.data.describe.names import is_cice_history
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

NORTH, EAST = {"units": "degrees_north"}, {"units": "degrees_east"}
DAYS = {"units": "days since 2000-01-01"}
SIZES = {"time": 2, "t": 2, "step": 3, "rec": 5, "c": 4, "z": 2, "q": 2, "b": 3, "a": 4, "obs": 6}


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


REASONS = {
    "usual names": (("time", "nj", "ni"), {}, "", ("its name",) * 3),
    "an attribute": (("t", "b", "a"), own(t={"axis": "T"}, b={"grads_dim": "y"}, a=EAST), "",
                     ("axis 'T' of t", "grads_dim 'y' of b", "units 'degrees_east' of a")),
    "long names": (("t", "b", "a"), own(b={"long_name": "latitude"}, a={"long_name": "longitude"}), "",
                   ("its name", "long_name 'latitude' of b", "long_name 'longitude' of a")),
    "places": (("t", "b", "a"), {"p": (("b", "a"), NORTH), "q": (("b", "a"), EAST)}, "p q",
               ("its name", "p and q lie along it", "p and q lie along it")),
    "moving places": (("obs",), {"p": (("obs",), NORTH), "q": (("obs",), EAST), "when": (("obs",), DAYS)}, "",
                      ("p and q lie along it, with times",)),
    "other coordinates": (("rec", "b", "a"), {"when": (("rec",), DAYS)}, "",
                          ("units 'days since 2000-01-01' of when", *["its position among the dimensions"] * 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONS)
def test_each_role_has_its_reason(tmp_path: Path, kind: str) -> None:
    dimensions, coordinates, named, expected = REASONS[kind]
    (access, *_) = source_of(tmp_path / "f.nc", dimensions, coordinates, named).files[0].variables.values()
    assert access.axes.reasons == expected


def test_two_dimensions_of_one_role_are_refused_with_both_reasons(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"dimensions nj \(its name\) and b \(units 'degrees_north' of b\) are both rows"
    ):
        source_of(tmp_path / "f.nc", ("nj", "b"), own(b=NORTH))


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


GRID = own(lat=NORTH, lon=EAST)
OTHERS = {
    "a storm's track": {"centre_lat": (("time",), NORTH), "centre_lon": (("time",), EAST)},
    "an edge": {"ice_edge_lat": (("lon",), NORTH)},
    "where air came from": {"dep_lat": (("time", "lat", "lon"), NORTH), "dep_lon": (("time", "lat", "lon"), EAST)},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_places_of_something_else_are_not_the_grid_s(tmp_path: Path, kind: str) -> None:
    coordinates = {**own(time=DAYS), **OTHERS[kind], **GRID}
    found = open_coordinates(source_of(tmp_path / "f.nc", ("time", "lat", "lon"), coordinates)).stored
    assert (found["lat"].info.name, found["lon"].info.name) == ("lat", "lon")


@pytest.mark.parametrize(
    ("names", "told"),
    [(("lat", "lon"), False), (("geolat", "geolon"), False), (("geolat", "geolon"), True), (("y2", "x2"), True)],
)
def test_true_places_come_before_nominal_axes(tmp_path: Path, names: tuple[str, str], told: bool) -> None:
    """Axes of a tripolar grid have units of places, and are none in the Arctic."""
    dimensions = ("time", "yt_ocean", "xt_ocean")
    true = {name: (dimensions[1:], attributes if told else {})
            for name, attributes in zip(names, (NORTH, EAST), strict=True)}  # fmt: skip
    coordinates = {**own(time=DAYS, yt_ocean=NORTH, xt_ocean=EAST), **true}
    found = open_coordinates(source_of(tmp_path / "f.nc", dimensions, coordinates)).stored
    assert (found["lat"].info.name, found["lon"].info.name) == names


def test_two_grids_of_the_same_dimensions_are_not_mixed(tmp_path: Path) -> None:
    coordinates = {name: (("b", "a"), one) for name, one in
                   {"ULAT": NORTH, "TLONG": EAST, "ULONG": EAST, "TLAT": NORTH}.items()}  # fmt: skip
    found = open_coordinates(source_of(tmp_path / "f.nc", ("t", "b", "a"), coordinates)).stored
    assert (found["lat"].info.name, found["lon"].info.name) == ("ULAT", "ULONG")


@pytest.mark.parametrize("more", [(), ("TLONG",)])
def test_a_cice_history_stays_one_beside_a_name_of_pop_s(tmp_path: Path, more: tuple[str, ...]) -> None:
    names = ("ULAT", "ULON", *more)
    coordinates = {name: (("b", "a"), NORTH if name == "ULAT" else EAST) for name in names}
    source = source_of(tmp_path / "f.nc", ("t", "b", "a"), coordinates)
    assert is_cice_history(source.handles.get(source.files[0]))


@pytest.mark.parametrize("depth", [{"standard_name": "depth", "positive": "down"}, {"units": "dbar"}])
@pytest.mark.parametrize("dimension", ["obs", "depth"])
def test_samples_at_a_depth_each_are_no_level(tmp_path: Path, depth: dict, dimension: str) -> None:
    source = source_of(tmp_path / "f.nc", (dimension,), {"depth": ((dimension,), depth)})
    assert (source.num_points, taken_for(source)) == (SIZES.get(dimension, 5), "i")


ALONG_SAMPLES = {
    "a pressure": {"units": "hPa"},
    "an elevation": {"units": "m", "standard_name": "height_above_mean_sea_level"},
    "a height": {"units": "m", "standard_name": "geopotential_height"},
    "an altitude": {"units": "m", "standard_name": "altitude"},
}


@pytest.mark.parametrize("kind", ALONG_SAMPLES)
def test_a_height_beside_the_samples_is_no_axis(tmp_path: Path, kind: str) -> None:
    """Stations have heights, and measure pressures."""
    source = source_of(tmp_path / "f.nc", ("t", "obs"), {"beside": (("obs",), ALONG_SAMPLES[kind])})
    assert taken_for(source) == "ti"


@pytest.mark.parametrize("kind", ["height", "pressure"])
def test_a_section_has_rows_and_columns(tmp_path: Path, kind: str) -> None:
    """Weaker signs of a level count only where axes are left over, and never against a usual name."""
    attributes = {"height": {"long_name": "Height"}, "pressure": {"units": "hPa"}}[kind]
    assert taken_for(source_of(tmp_path / "f.nc", ("t", "y", "x"), own(y=attributes))) == "tji"
    assert taken_for(source_of(tmp_path / "f.nc", ("t", "range"), own(range=attributes))) == "ti"
    assert taken_for(source_of(tmp_path / "f.nc", ("t", "b", "a"), own(b={"long_name": "time"}))) == "tji"


LEAD = {"standard_name": "forecast_period", "units": "hours"}
VALID = {**DAYS, "standard_name": "time"}


def test_a_forecast_s_time_is_its_start(tmp_path: Path) -> None:
    coordinates = {
        **own(t={**DAYS, "standard_name": "forecast_reference_time"}, step=LEAD),
        "valid_time": (("t", "step"), VALID), **GRID,
    }  # fmt: skip
    source = source_of(tmp_path / "f.nc", ("t", "step", "lat", "lon"), coordinates, level="[step=1]")
    assert (taken_for(source), open_coordinates(source).time_name) == ("t.ji", "t")


def test_leads_of_one_forecast_are_its_times(tmp_path: Path) -> None:
    coordinates = {"time": ((), VALID), **own(step=LEAD), "valid_time": (("step",), VALID), **GRID}
    source = source_of(tmp_path / "f.nc", ("step", "lat", "lon"), coordinates)
    assert (taken_for(source), open_coordinates(source).time_name) == ("tji", "valid_time")


@pytest.mark.parametrize("beside", [LEAD, {"units": "m", "standard_name": "depth"}])
def test_records_with_a_time_and_a_lead_or_a_depth_are_times(tmp_path: Path, beside: dict) -> None:
    coordinates = {"valid": (("rec",), VALID), "beside": (("rec",), beside)}
    source = source_of(tmp_path / "f.nc", ("rec", "c"), coordinates)
    assert (taken_for(source), open_coordinates(source).time_name) == ("ti", "valid")


def test_a_guessed_level_is_no_time(tmp_path: Path) -> None:
    """No time of a prediction has units of pressure."""
    found = open_coordinates(source_of(tmp_path / "f.nc", ("q", "b", "a"), own(q={"units": "m"}, b=NORTH, a=EAST)))
    assert (found.times, found.time_name) == (None, "")
    assert np.isfinite(found.grids["lat"]).all()
