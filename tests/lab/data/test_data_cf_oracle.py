"""Coordinates, axes and times of files as cf_xarray and xarray read them, beside what the package takes them for.

Skipped where cf_xarray is missing: `pip install cf_xarray iris-sample-data`. Files of packages that are not installed
are skipped too; two data sets of cf_xarray need pyproj. Every difference is in `EXPLAINED`, with the reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cf_xarray")

from cf_oracle import Difference, compare
from cf_oracle_files import FILES

BY_NAME = "cf_xarray by CF 4.1 and 5: no units and no standard name; the package knows the usual name"
UNNAMED = "cf_xarray by CF 5: nothing names it as a coordinate; the package takes what lies along the dimensions"
NOMINAL = "cf_xarray by CF 5: nothing names the places; the package takes those of two dimensions before nominal axes"
MESH = "the package, by CF 5.9: the mesh names the places, and others lie along the same dimension; xarray knows none"
MADE = "the package, by CF 5.6: it computes the true places of a rotated pole; cf_xarray computes nothing"
LONG_NAME = "the package, by CF 3.2: `long_name` is free text, which cf_xarray takes for a standard name"
JAVA = "neither: `_CoordinateAxisType` is not CF's; the package takes it for axes, cf_xarray for places too"
ROTATED = "the package, by the standard name: a grid_latitude is none; cf_xarray goes by the units"
LEAD = "the package, by the standard name: a forecast_period, for which cf_xarray has no word"
MEMBER = "the package, by the standard name: a realization (CF 4.5), for which cf_xarray has no word"
START = "the package, by the standard name: a forecast_reference_time is not the time of the data"
SAMPLES = "cf_xarray by CF 4.3: a level; the package takes the only dimension of a variable as that of its samples"
CALENDAR = "xarray by CF 4.4.1: '360' is no calendar; the package takes it for 360_day, which its writers mean"
YEAR_ZERO = (
    "xarray by CF 4.4.1: the calendar has no year 0; the package counts it, for climatologies as COARDS has them"
)
MONTHS = (
    "neither: by CF 4.4 a month is a twelfth of a mean year; the package counts in the calendar, as writers mean it"
)
LETTERS = "the package: xarray looks for `since` in small letters; cftime, by which both read, takes others"
ABSOLUTE = "xarray by CF 4.4: no time since a date; the package reads the days that CDO writes so"
MISSING = "the package, by CF 2.5.1: the stored number stands for a missing one, which xarray decodes as the first date"
LAST_YEAR = "both, by CF 7.4: the middle of the first and the last year together, or of the interval in the last"
EACH_VALUE = "cf_xarray by CF 9.3: a time for each value; a run reads such values as rows, each with its time"
LEAP_SECONDS = "xarray: leap seconds, up to 27 of utc and 37 of tai, are not counted; the package says so in its help"

# File, variables, what differs as `cf_xarray | package`, and which of the two is right and why.
ROWS = (
    ("case iri_months_360, iri.nc", "T", ("dates: unread | read",), CALENDAR),
    ("case masked_time, gaps.nc", "time", ("dates: 10957 | nan",), MISSING),
    ("case mpas_levels_last, history.nc", "qv surface_pressure theta",
     ("latitude: none | latCell", "longitude: none | lonCell"), BY_NAME),
    ("case text_missing_value, drifters.nc", "salt temp",
     ("latitude: unnamed | lat", "longitude: unnamed | lon"), UNNAMED),
    ("user nemo", "sohefldo thetao", ("latitude: none | nav_lat", "longitude: none | nav_lon"), BY_NAME),
    ("user fesom", "a_ice_flux salt temp", ("latitude: unnamed | lat", "longitude: unnamed | lon"), UNNAMED),
    ("user zarr_2", "time", ("dates: 10957 | nan",), MISSING),
    ("written ferret", "TIME", ("dates: unread | read",), YEAR_ZERO),
    ("written rotated pole", "x y", ("latitude: none | lat, made", "longitude: none | lon, made"), MADE),
    ("written tiny history", "Tair_h Tsfc_h aice_h hi_h hs_h sice_h sss_h sst_h umask",
     ("latitude: none | ULAT", "longitude: none | ULON"), BY_NAME),
    ("written mesh", "x y", ("latitude: unnamed | face_y", "longitude: unnamed | face_x"), MESH),
    ("kind netCDF-Java, t z b a", "x y", ("latitude: b | none", "longitude: a | none"), JAVA),
    ("kind netCDF-Java, a b z", "x y", ("latitude: b | none", "longitude: a | none"), JAVA),
    ("kind long names, t z b a", "a", ("role: columns | none",), LONG_NAME),
    ("kind long names, t z b a", "b", ("role: rows | none",), LONG_NAME),
    ("kind long names, t z b a", "x y", ("latitude: b | none", "longitude: a | none"), LONG_NAME),
    ("kind long names, a b z", "a", ("role: columns | none",), LONG_NAME),
    ("kind long names, a b z", "b", ("role: rows | none",), LONG_NAME),
    ("kind long names, a b z", "x y", ("latitude: b | none", "longitude: a | none"), LONG_NAME),
    ("kind a lead, t z b a", "z", ("role: none | lead",), LEAD),
    ("kind a lead, a b z", "z", ("role: none | lead",), LEAD),
    ("kind members, t z b a", "z", ("role: none | other",), MEMBER),
    ("kind members, a b z", "z", ("role: none | other",), MEMBER),
    ("kind reasons, long names", "a", ("role: columns | none",), LONG_NAME),
    ("kind reasons, long names", "b", ("role: rows | none",), LONG_NAME),
    ("kind reasons, long names", "x y", ("latitude: b | none", "longitude: a | none"), LONG_NAME),
    ("kind reasons, moving places", "x y",
     ("latitude: unnamed | p", "longitude: unnamed | q", "time: unnamed | when"), UNNAMED),
    ("kind reasons, other coordinates", "x y", ("time: unnamed | when",), UNNAMED),
    ("kind standard names", "x y", ("latitude: unnamed | one", "longitude: unnamed | two"), UNNAMED),
    ("kind nominal axes, untold", "x y",
     ("latitude: unnamed, yt_ocean | geolat", "longitude: unnamed, xt_ocean | geolon"), NOMINAL),
    ("kind forecasts", "step", ("role: none | lead",), LEAD),
    ("kind leads of a forecast", "step", ("role: none | lead",), LEAD),
    ("kind leads of a forecast", "x y", ("time: unnamed | valid_time",), UNNAMED),
    ("kind leads of a forecast, told", "step", ("role: none | lead",), LEAD),
    ("kind samples at a depth each", "x y", ("dimension depth: other | columns",), SAMPLES),
    ("kind grid_latitude in degrees_north alone", "x y", ("latitude: rlat | none", "longitude: rlon | none"), ROTATED),
    ("kind a profile", "x y", ("dimension z: other | columns",), SAMPLES),
    ("kind leads of one analysis", "forecast_period", ("role: none | lead",), LEAD),
    ("kind one analysis, no valid time", "x y", ("time: start | none",), START),
    ("kind times of two dimensions", "lead", ("role: none | lead",), LEAD),
    ("kind trajectories", "x y", ("time: time | none",), EACH_VALUE),
    ("kind stations with times of their own", "x y", ("time: time | none",), EACH_VALUE),
    ("times utc", "time", ("dates: unread | read",), LEAP_SECONDS),
    ("times tai", "time", ("calendar: tai | standard",), LEAP_SECONDS),
    ("times upper case", "time", ("dates: unread | read", "role: none | time"), LETTERS),
    ("times upper case", "x y", ("time: none | time",), LETTERS),
    ("times months", "time", ("dates: unread | read",), MONTHS),
    ("times years", "time", ("dates: unread | read",), MONTHS),
    ("times year zero", "time", ("dates: unread | read",), YEAR_ZERO),
    ("times packed numbers", "time", ("dates: unread | read", "role: none | time"), ABSOLUTE),
    ("times packed numbers", "x y", ("time: none | time",), ABSOLUTE),
    ("climatology", "time", ("dates: -1627 | 15.5",), LAST_YEAR),
    ("climatology", "x y", ("latitude: none | lat", "longitude: none | lon"), BY_NAME),
    ("cf_xarray forecast", "L", ("role: none | lead",), LEAD),
    ("cf_xarray forecast", "M", ("role: none | other",), MEMBER),
    ("iris_sample_data hybrid_height", "air_potential_temperature",
     ("latitude: none | lat, made", "longitude: none | lon, made"), MADE),
    ("iris_sample_data mesh_C4_synthetic_float",
     "example_C4_face_edges example_C4_face_links example_C4_face_nodes synthetic",
     ("latitude: unnamed | example_C4_face_y", "longitude: unnamed | example_C4_face_x"), MESH),
    ("iris_sample_data rotated_pole", "air_pressure_at_sea_level",
     ("latitude: none | lat, made", "longitude: none | lon, made"), MADE),
)  # fmt: skip
EXPLAINED = {
    (file, Difference(variable, what)): reason
    for file, variables, differences, reason in ROWS
    for variable in variables.split()
    for what in differences
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_means_what_cf_xarray_takes_it_for(file: str, tmp_path: Path) -> None:
    found = compare(FILES[file](tmp_path)).differences
    explained = {difference for name, difference in EXPLAINED if name == file}
    assert found - explained == set(), "differences that nothing explains"
    assert explained - found == set(), "explained differences that are none any more"


def test_all_that_is_explained_is_compared() -> None:
    assert {file for file, _ in EXPLAINED} <= set(FILES)
