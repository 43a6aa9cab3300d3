"""The files that are compared with cf_xarray: those that tests write, and those that installed packages bring."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path
from unittest import mock

import cftime
import netCDF4
import numpy as np
import pytest
import test_data_cases
import test_data_cf
import test_data_real_files
import test_inference_real_files
import user_files
import xarray as xr
from cf_xarray import criteria
from conftest import TESTS
from field_files import ramp, write_netcdf
from test_data_cf import DAYS, EAST, LEAD, NORTH, VALID, own
from tiny_history import write_tiny_history

from mpitrain.errors import DataError

Maker = Callable[[Path], Path]
"""Writes a file into a folder and returns its path; skips the test where what it needs is not installed."""

# Of the tests


def _of_case(name: str, file: str, folder: Path) -> Path:
    with chdir(folder):
        runpy.run_path(str(TESTS / "data" / "cases" / f"{name}.py"))
    return folder / file


def _of_user(name: str, folder: Path) -> Path:
    return user_files.CASES[name](folder).files[0]


def _of_kind(dimensions: tuple[str, ...], coordinates: dict, named: str, folder: Path) -> Path:
    """Write a file of `test_data_cf`, some of which are refused without a level."""
    with suppress(DataError):
        test_data_cf.source_of(folder / "f.nc", dimensions, coordinates, named)
    return folder / "f.nc"


def _of_function(write: Callable[..., Path], folder: Path, **options: object) -> Path:
    return write(folder / "f.nc", **options)


def _climatology(folder: Path) -> Path:
    """Means of January to December over ten years, stamped at the end of the last."""
    intervals = [
        (cftime.datetime(1961, month, 1, calendar="noleap"),
         cftime.datetime(1970 + month // 12, month % 12 + 1, 1, calendar="noleap"))
        for month in range(1, 13)
    ]  # fmt: skip
    return test_data_cases.write_climatology(folder / "f.nc", intervals, "noleap", 1)


def _month_ends(folder: Path, method: str) -> Path:
    path = _of_case("cice_month_end", "iceh.2001.nc", folder)
    with netCDF4.Dataset(str(path), "a") as file:
        for name in ("aice_h", "Tair_h"):
            file[name].cell_methods = f"time: {method}"
    return path


def _means(folder: Path, stamped: float, first: float = 0.0) -> Path:
    """Means of days whose stamps are at a part of their interval; the first one may have no interval."""
    starts = np.arange(3.0)
    bounds = np.stack([starts, starts + 1], axis=1)
    bounds[0, 0] += first
    grid = ("time", "lat", "lon")
    variables = {
        "time": (("time",), starts + stamped), "time_bnds": (("time", "nv"), bounds),
        "lat": (("lat",), np.arange(4.0)), "lon": (("lon",), np.arange(5.0)),
        **{name: (grid, ramp(0, (3, 4, 5))) for name in "xy"},
    }  # fmt: skip
    methods = {"cell_methods": "time: mean"}
    time = {**DAYS, "bounds": "time_bnds"}
    return write_netcdf(folder / "f.nc", variables, "", None, time=time, lat=NORTH, lon=EAST, x=methods, y=methods)


def _at_times(units: str, calendar: str, numbers: list[float], folder: Path) -> Path:
    """Write x and y at three times."""
    variables = {name: (("time", "lat", "lon"), ramp(0, (3, 4, 5))) for name in "xy"}
    variables |= {"time": (("time",), np.array(numbers, dtype=np.float64))}
    variables |= {"lat": (("lat",), np.arange(4.0)), "lon": (("lon",), np.arange(5.0))}
    time = {"units": units, **({"calendar": calendar} if calendar else {})}
    return write_netcdf(folder / "f.nc", variables, "", None, time=time, lat=NORTH, lon=EAST)


CASE_FILES = (
    ("cice_month_end", "iceh.2001.nc"), ("iri_months_360", "iri.nc"), ("iri_months_360", "named.nc"),
    ("masked_time", "gaps.nc"), ("mpas_levels_last", "history.nc"), ("odd_names_fortran", "odd.nc"),
    ("text_missing_value", "drifters.nc"), ("two_calendars", "standard.nc"), ("two_calendars", "noleap.nc"),
    ("wrf_xtime_xlat", "wrfout.nc"), ("zarr_dry_chunks", "plain.zarr"), ("zarr_dry_chunks", "sharded.zarr"),
)  # fmt: skip
USERS = ("nemo", "era5_old", "era5_new", "fesom", "icon", "columns", "zarr_2", "zarr_3")
WRITERS = {
    "ferret": test_data_real_files.ferret_file, "orca": test_data_real_files.orca_file,
    "wrf": test_data_real_files.wrf_file, "rotated pole": test_data_real_files.rotated_file,
    "tiny history": write_tiny_history, "ocean": test_inference_real_files.write_ocean,
    "rotated": test_inference_real_files.write_rotated, "mesh": test_inference_real_files.write_mesh,
}  # fmt: skip


def _along(dimensions: str, **attributes: dict) -> dict:
    """Return coordinates along the same dimensions."""
    return {name: (tuple(dimensions.split()), one) for name, one in attributes.items()}


START = {**DAYS, "standard_name": "forecast_reference_time"}
DEPTH = {"standard_name": "depth", "units": "m", "positive": "down", "axis": "Z"}
HYBRID = {"standard_name": "atmosphere_hybrid_sigma_pressure_coordinate", "positive": "down"}
SPHERE = test_data_cf.GRID
PROJECTED = own(north={"standard_name": "projection_y_coordinate", "units": "km"},
                east={"standard_name": "projection_x_coordinate", "units": "km"})  # fmt: skip
# Of the examples of CF 5 and of its appendix H: dimensions, coordinates, the attribute `coordinates`.
CF_EXAMPLES = {
    "axes with places": (
        ("time", "yc", "xc"),
        {**own(time=DAYS, yc={"axis": "Y"}, xc={"axis": "X"}), **_along("yc xc", lat=NORTH, lon=EAST)},
        "lon lat",
    ),
    "a reduced grid": (("time", "rgrid"), {**own(time=DAYS), **_along("rgrid", lat=NORTH, lon=EAST)}, "lon lat"),
    "Lambert": (
        ("time", "north", "east"),
        {**own(time=DAYS), **PROJECTED, **_along("north east", lat=NORTH, lon=EAST)},
        "lat lon",
    ),
    "Lambert, transposed": (
        ("east", "north", "time"),
        {**own(time=DAYS), **PROJECTED, **_along("north east", lat=NORTH, lon=EAST)},
        "lat lon",
    ),
    "axes against their names": (
        ("time", "ni", "nj"),
        {**own(time=DAYS, ni={"axis": "Y"}, nj={"axis": "X"}), **_along("ni nj", lat=NORTH, lon=EAST)},
        "lat lon",
    ),
    "grid_latitude in degrees_north": (
        ("time", "rlat", "rlon"),
        {
            **own(time=DAYS, rlat={"standard_name": "grid_latitude", **NORTH},
                  rlon={"standard_name": "grid_longitude", **EAST}),
            **_along("rlat rlon", lat=NORTH, lon=EAST),
        },
        "lat lon",
    ),
    "grid_latitude in degrees_north alone": (
        ("time", "rlat", "rlon"),
        own(time=DAYS, rlat={"standard_name": "grid_latitude", **NORTH},
            rlon={"standard_name": "grid_longitude", **EAST}),
        "",
    ),
    "stations": (
        ("station", "time"),
        {
            **own(time=DAYS),
            **_along("station", lat=NORTH, lon=EAST, alt={"standard_name": "height", "positive": "up", "axis": "Z"}),
        },
        "lat lon alt",
    ),
    "stations with times of their own": (
        ("station", "obs"),
        {**_along("station obs", time=VALID), **_along("station", lat=NORTH, lon=EAST)},
        "time lat lon",
    ),
    "a trajectory": (
        ("obs",), _along("obs", time=VALID, lat=NORTH, lon=EAST, z=DEPTH), "time lat lon z",
    ),
    "trajectories": (
        ("trajectory", "obs"), _along("trajectory obs", time=VALID, lat=NORTH, lon=EAST, z=DEPTH), "time lat lon z",
    ),
    "profiles": (
        ("profile", "z"), {**own(z=DEPTH), **_along("profile", time=VALID, lat=NORTH, lon=EAST)}, "time lat lon",
    ),
    "profiles at depths of their own": (
        ("profile", "layer"),
        {**_along("profile layer", z=DEPTH), **_along("profile", time=VALID, lat=NORTH, lon=EAST)},
        "time lat lon z",
    ),
    "profiles of a station": (
        ("time", "z"), {**own(time=VALID, z=DEPTH), **_along("", lat=NORTH, lon=EAST)}, "lat lon",
    ),
    "a profile": (("z",), {**own(z=DEPTH), **_along("", time=VALID, lat=NORTH, lon=EAST)}, "time lat lon"),
    "times with starts and leads": (
        ("time", "lat", "lon"),
        {**own(time=VALID), **SPHERE, **_along("time", forecast_period=LEAD, forecast_reference_time=START)},
        "forecast_period forecast_reference_time",
    ),
    "leads of one analysis": (
        ("forecast_period", "lat", "lon"),
        {**own(forecast_period=LEAD), **SPHERE, **_along("forecast_period", time=VALID), **_along("", start=START)},
        "time start",
    ),
    "one lead of many analyses": (
        ("start", "lat", "lon"),
        {**own(start=START), **SPHERE, **_along("start", time=VALID), **_along("", forecast_period=LEAD)},
        "time forecast_period",
    ),
    "one time": (
        ("lat", "lon"),
        {**SPHERE, **_along("", time=VALID, height={"standard_name": "height", "units": "m", "positive": "up"})},
        "height time",
    ),
    "one analysis, no valid time": (("lat", "lon"), {**SPHERE, **_along("", start=START)}, "start"),
    "hybrid levels with pressures": (
        ("time", "lev", "lat", "lon"),
        {**own(time=DAYS, lev=HYBRID), **SPHERE, **_along("lev", p={"standard_name": "air_pressure", "units": "Pa"})},
        "p",
    ),
    "places of both grids named": (
        ("time", "b", "a"),
        {**own(time=DAYS), **_along("b a", TLAT=NORTH, TLONG=EAST, ULAT=NORTH, ULONG=EAST)},
        "TLONG TLAT ULONG ULAT",
    ),
    "a latitude of a section": (
        ("time", "z", "way"),
        {**own(time=DAYS, z=DEPTH), **_along("way", lat=NORTH, lon=EAST)},
        "lat lon",
    ),
    "zonal means": (("time", "z", "lat"), {**own(time=DAYS, z=DEPTH, lat=NORTH)}, ""),
    "a Hovmoller diagram": (("time", "lon"), {**own(time=DAYS, lon=EAST), **_along("", lat=NORTH)}, "lat"),
    "two times along one dimension": (
        ("rec", "lat", "lon"), {**SPHERE, **_along("rec", begin=DAYS, time=VALID)}, "time",
    ),
    "an axis T without a date": (("frame", "lat", "lon"), {**own(frame={"axis": "T", "units": "s"}), **SPHERE}, ""),
    "members": (("member", "time", "lat", "lon"), {**own(time=DAYS), **SPHERE}, ""),
    "times of two dimensions": (
        ("start", "lead", "lat", "lon"),
        {**own(start=START, lead=LEAD), **SPHERE, **_along("start lead", time=VALID)},
        "time",
    ),
}  # fmt: skip


def _kinds() -> dict[str, tuple[tuple[str, ...], dict, str]]:
    """Return dimensions, coordinates and what the attribute `coordinates` names, of the files of `test_data_cf`."""
    kinds = {}
    for name, one in test_data_cf.AXES.items():
        for dimensions in (("t", "z", "b", "a"), ("a", "b", "z")):
            kinds[f"{name}, {' '.join(dimensions)}"] = dimensions, own(**one), ""
    for name, (dimensions, coordinates, named, _) in test_data_cf.REASONS.items():
        kinds[f"reasons, {name}"] = dimensions, coordinates, named
    for name, (named, dimensions, attributes, _) in test_data_cf.PLACES.items():
        kinds[name] = dimensions, {key: (dimensions[-2:], one) for key, one in attributes.items()}, named
    for name, coordinates in test_data_cf.OTHERS.items():
        kinds[name] = ("time", "lat", "lon"), {**own(time=DAYS), **coordinates, **test_data_cf.GRID}, ""
    for name, attributes in test_data_cf.ALONG_SAMPLES.items():
        kinds[f"beside, {name}"] = ("t", "obs"), {"beside": (("obs",), attributes)}, "beside"
    for name, places in (("told", "geolat geolon"), ("untold", "")):
        true = {"geolat": (("yt_ocean", "xt_ocean"), NORTH), "geolon": (("yt_ocean", "xt_ocean"), EAST)}
        axes = own(time=DAYS, yt_ocean=NORTH, xt_ocean=EAST)
        kinds[f"nominal axes, {name}"] = ("time", "yt_ocean", "xt_ocean"), {**axes, **true}, places
    start = {**DAYS, "standard_name": "forecast_reference_time"}
    valid = {"valid_time": (("t", "step"), VALID)}
    kinds["forecasts"] = ("t", "step", "lat", "lon"), {**own(t=start, step=LEAD), **valid, **test_data_cf.GRID}, ""
    one = {"time": ((), VALID), **own(step=LEAD), "valid_time": (("step",), VALID), **test_data_cf.GRID}
    kinds["leads of a forecast"] = ("step", "lat", "lon"), one, ""
    kinds["leads of a forecast, told"] = ("step", "lat", "lon"), one, "time valid_time"
    depth = {"depth": (("depth",), {"standard_name": "depth", "positive": "down"})}
    kinds["samples at a depth each"] = ("depth",), depth, ""
    kinds["rows of pressures"] = ("t", "b", "a"), own(b={"units": "hPa"}), ""
    return kinds | CF_EXAMPLES


def _criteria(folder: Path) -> Path:
    """Write a coordinate variable for each attribute that cf_xarray knows one by; `long_name` is free text."""
    names = {
        f"{role}_{attribute}_{value}": {attribute: value}
        for role, attributes in criteria.coordinate_criteria.items()
        for attribute, values in attributes.items()
        if attribute != "long_name"
        for value in values
    }
    variables = {name: ((name,), np.arange(2.0)) for name in names}
    return write_netcdf(folder / "f.nc", variables, "", None, **names)


TIMES = {
    "julian days": ("days since 1858-11-17", "standard", [51544.0, 51544.5, 51545.0]),
    "no calendar": ("hours since 1900-01-01 00:00:0.0", "", [963000.0, 963006.0, 963012.0]),
    "before 1582": ("days since 1500-01-01", "standard", [0.0, 30000.0, 40000.0]),
    "gregorian, before 1582": ("days since 1500-01-01", "proleptic_gregorian", [0.0, 30000.0, 40000.0]),
    "julian": ("days since 1500-01-01", "julian", [0.0, 30000.0, 200000.0]),
    "noleap": ("days since 0001-01-01", "noleap", [0.0, 59.0, 730000.5]),
    "365_day": ("days since 0001-01-01", "365_day", [0.0, 59.0, 730000.5]),
    "all_leap": ("days since 1850-01-01", "366_day", [59.0, 60.0, 73000.0]),
    "360_day": ("days since 1850-01-01", "360_day", [59.0, 60.0, 54000.25]),
    "seconds in UTC": ("seconds since 1970-01-01T00:00:00Z", "standard", [0.0, 3600.0, 1.6e9]),
    "a zone": ("hours since 2000-01-01 00:00:00 +02:00", "standard", [0.0, 2.0, 4.0]),
    "a western zone": ("hours since 2000-01-01 00:00:00 -6:00", "standard", [0.0, 2.0, 4.0]),
    "minutes": ("min since 2000-01-01 12:30", "standard", [0.0, 30.0, 1e6]),
    "milliseconds": ("milliseconds since 2000-01-01", "standard", [0.0, 1.0, 1e12]),
    "weeks": ("weeks since 2000-01-01", "standard", [0.0, 1.0, 100.0]),
    "upper case": ("Days Since 2000-01-01", "GREGORIAN", [0.0, 1.0, 2.0]),
    "a year alone": ("days since 2000", "standard", [0.0, 1.0, 2.0]),
    "short numbers": ("days since 1-1-1 0:0:0", "standard", [0.0, 700000.0, 730000.0]),
    "months": ("months since 2000-01-01", "standard", [0.0, 1.0, 2.0]),
    "months of 360_day": ("months since 2000-01-01", "360_day", [0.5, 1.5, 2.5]),
    "years": ("years since 2000-01-01", "standard", [0.0, 1.0, 2.0]),
    "common years": ("common_years since 2000-01-01", "noleap", [0.0, 1.0, 2.0]),
    "year zero": ("days since 0000-01-01", "standard", [15.5, 45.0, 74.5]),
    "year zero, gregorian": ("days since 0000-01-01", "proleptic_gregorian", [15.5, 45.0, 74.5]),
    "year zero, noleap": ("days since 0000-01-01", "noleap", [15.5, 45.0, 74.5]),
    "packed numbers": ("day as %Y%m%d.%f", "proleptic_gregorian", [20981118.75, 20990101.0, 20990201.0]),
    "utc": ("days since 2016-12-31", "utc", [0.0, 1.0, 2.0]),
    "tai": ("days since 2016-12-31", "tai", [0.0, 1.0, 2.0]),
    "none": ("days since 2000-01-01", "none", [0.0, 1.0, 2.0]),
    "descending": ("days since 2000-01-01", "standard", [2.0, 1.0, 0.0]),
    "no date": ("days since the start", "standard", [0.0, 1.0, 2.0]),
}  # fmt: skip


# Of installed packages

CF_XARRAY = (
    "airds", "pomds", "popds", "anc", "multiple", "romsds", "mollwds", "rotds", "forecast", "ambig", "vert", "dsg",
    "sgrid_roms", "hrrrds", "healpix_ds", "reduced_gaussian_global_ds", "reduced_gaussian_land_ds",
    "reduced_gaussian_region_ds",
)  # fmt: skip
SHIPPED = {
    "xarray": ("tests/data", ("example_1", "bears")),
    "iris_sample_data": (
        "sample_data",
        ("A1B_north_america", "E1_north_america", "SOI_Darwin", "atlantic_profiles", "hybrid_height",
         "mesh_C4_synthetic_float", "orca2_votemper", "ostia_monthly", "rotated_pole", "space_weather",
         "toa_brightness_stereographic", "vlstr_type", "NEMO/nemo_1m_20150101-20150201_grid-T"),
    ),
}  # fmt: skip


def _air(name: str) -> xr.Dataset:
    """Return what has the structure of xarray's "air_temperature", which is fetched from afar."""
    attributes = {
        "time": {"standard_name": "time", "long_name": "Time", "units": "hours since 1800-01-01"},
        "lat": {"standard_name": "latitude", "long_name": "Latitude", "units": "degrees_north", "axis": "Y"},
        "lon": {"standard_name": "longitude", "long_name": "Longitude", "units": "degrees_east", "axis": "X"},
    }
    values = {"time": 6.0 * np.arange(8) + 1867128, "lat": 75 - 2.5 * np.arange(25), "lon": 200 + 2.5 * np.arange(53)}
    coordinates = {key: (key, numbers, attributes[key]) for key, numbers in values.items()}
    return xr.Dataset({name[:3]: (("time", "lat", "lon"), ramp(0, (8, 25, 53)))}, coordinates)


def _of_cf_xarray(name: str, folder: Path) -> Path:
    """Write a data set of `cf_xarray.datasets`."""
    if "cf_xarray.datasets" not in sys.modules:
        # Nothing comes from afar, and times stay as they would be stored.
        with mock.patch.object(xr.tutorial, "open_dataset", _air), mock.patch.object(xr, "decode_cf", lambda one: one):
            importlib.import_module("cf_xarray.datasets")
    found = getattr(sys.modules["cf_xarray.datasets"], name, None)
    if found is None:
        pytest.skip(f"cf_xarray.datasets has no {name}, which may need pyproj")
    found = found.copy()
    for one in found.variables.values():  # xarray writes no attribute that is named in both
        one.attrs = {key: value for key, value in one.attrs.items() if key not in one.encoding}
    found.to_netcdf(folder / "f.nc", engine="netcdf4")
    return folder / "f.nc"


def _shipped(package: str, inner: str, folder: Path) -> Path:
    found = importlib.util.find_spec(package)
    path = None if found is None or found.origin is None else Path(found.origin).parent / inner
    if path is None or not path.is_file():
        pytest.skip(f"no {inner} of {package}; pip install {package.replace('_', '-')}")
    return path


FILES: dict[str, Maker] = {
    **{f"case {name}, {file}": partial(_of_case, name, file) for name, file in CASE_FILES},
    **{f"user {name}": partial(_of_user, name) for name in USERS},
    **{f"written {name}": partial(_of_function, write) for name, write in WRITERS.items()},
    **{f"kind {name}": partial(_of_kind, *one) for name, one in _kinds().items()},
    **{f"times {name}": partial(_at_times, *one) for name, one in TIMES.items()},
    "means stamped at an end, point": partial(_month_ends, method="point"),
    **{f"means stamped at {part}": partial(_means, stamped=part) for part in (0.0, 0.5, 1.0)},
    "means stamped at 1.0, without the first interval": partial(_means, stamped=1.0, first=1.0),
    "climatology": _climatology,
    "criteria of cf_xarray": _criteria,
    **{f"cf_xarray {name}": partial(_of_cf_xarray, name) for name in CF_XARRAY},
    **{
        f"{package} {file}": partial(_shipped, package, f"{folder}/{file}.nc")
        for package, (folder, files) in SHIPPED.items()
        for file in files
    },
}
