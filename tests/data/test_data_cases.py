"""What was silently wrong with files that people have: the inputs of `cases/`, and others of their kinds.

Each file of `cases/` writes its input into the current folder. Sources are read as a run reads them, in this process.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import cftime
import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from conftest import TESTS
from field_files import config_of, ramp, read_all, write_netcdf

from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

CASES = TESTS / "data" / "cases"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the input of a case into the folder of the test, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(CASES / f"{name}.py"))


def source_of(path, inputs, outputs, *settings):
    names = f"variables.input_variables={inputs}", f"variables.output_variables={outputs}"
    return open_source(selection_of(config_of(path, *names, "domain.mask_mode=all", *settings)))


def columns_of(path, inputs, outputs, *settings):
    """The selected samples: inputs (N, F) and targets (N, G), those with a missing value too."""
    samples = read_all(source_of(path, inputs, outputs, *settings))
    return samples.inputs, samples.targets


def facts(values):
    """Mean, minimum, maximum and number of missing ones."""
    known = values[np.isfinite(values)]
    return known.mean(), known.min(), known.max(), int(values.size - known.size)


# Attributes that are text


def test_a_fill_value_that_zarr_3_holds_as_coded_text(make):
    make("zarr3_coded_fill")
    sst, tair = columns_of("ocean.zarr", "[sst]", "[tair]")
    assert facts(sst) == (15, 10, 20, 64)
    assert facts(tair) == (6, 5, 7, 40)


def test_a_missing_value_that_is_text(make):
    make("text_missing_value")
    temp, salt = columns_of("drifters.nc", "[temp]", "[salt]")
    assert (*facts(temp)[1:], facts(salt)[3]) == (1, 4, 20, 10)
    both = np.isfinite(temp[:, 0]) & np.isfinite(salt[:, 0])
    assert (both.sum(), temp[both].mean()) == (170, pytest.approx(2.52941176))


TEXTS = {
    "scale and offset": ({"scale_factor": "0.5", "add_offset": "10."}, np.arange(4) * 0.5 + 10),
    "a valid range": ({"valid_range": "1, 2.0f"}, [np.nan, 1, 2, np.nan]),
    "limits": ({"valid_min": "1s", "valid_max": "2"}, [np.nan, 1, 2, np.nan]),
    "a fill value": ({"_FillValue": "3"}, [0, 1, 2, np.nan]),
    "no number": ({"missing_value": "none"}, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("end", ["h5", "nc", "zarr"])
def test_numbers_that_are_text(tmp_path: Path, kind: str, end: str) -> None:
    attributes, expected = TEXTS[kind]
    path, values = tmp_path / f"f.{end}", np.arange(4, dtype="i2")
    if end == "zarr":
        group = zarr.open_group(str(path), mode="w", zarr_format=2)
        for name in ("x", "y"):
            group.create_array(name, shape=(4,), dtype="i2", fill_value=None)[:] = values
        group["x"].attrs.update(attributes)
    else:  # netCDF4 writes no such text; other libraries do not ask
        with h5py.File(path, "w") as file:
            for name in ("x", "y"):
                file[name] = values
            file["x"].attrs.update({name: np.bytes_(text) for name, text in attributes.items()})
    source = source_of(path, "[x]", "[y]")
    assert np.array_equal(read_all(source).inputs[:, 0], np.asarray(expected, "f4"), equal_nan=True)
    told = [line for line in source.notices if "is the text 'none', and is not applied" in line]
    assert len(told) == int(kind == "no number")


def test_text_limits_of_packed_values_are_not_applied_and_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in ("x", "y"):
            file[name] = np.array([5000, 9000], "i2")
        file["x"].attrs.update({"scale_factor": 0.01, "valid_range": np.bytes_("0 100")})
    source = source_of(tmp_path / "f.h5", "[x]", "[y]")
    assert read_all(source).inputs[:, 0].tolist() == [50, 90]
    assert any("valid_range is the text '0 100', and is not applied" in line for line in source.notices)


# Axes that nobody knows


def test_levels_beside_cells_are_asked_for(make):
    make("mpas_levels_last")
    for outputs in ("[qv]", "[surface_pressure]"):
        with pytest.raises(DataError, match=r"'theta' .*nVertLevels of size 5 .*theta\[nVertLevels=0\]"):
            source_of("history.nc", "[theta]", outputs)
    theta, pressure = columns_of("history.nc", "['theta[nVertLevels=0]', 'theta[nVertLevels=4]']", "[surface_pressure]")
    assert (len(theta), *theta.mean(axis=0), pressure.mean()) == (80, 300, 340, 100019.5)
    theta, qv = columns_of("history.nc", "['theta[nVertLevels=:]']", "['qv[nVertLevels=:]']")
    assert theta[0].tolist() == [300, 310, 320, 330, 340]
    assert qv[0] == pytest.approx(np.arange(1, 6) * 0.001)


def test_places_of_mpas_are_in_radians(make):
    make("mpas_levels_last")
    names = "history.nc", "['theta[nVertLevels=0]']", "[surface_pressure]"
    assert len(columns_of(*names, "domain.latitude_range=[30, 90]")[0]) == 26
    found = open_coordinates(source_of(*names))
    assert (found.grids["lat"].min(), found.grids["lat"].max()) == pytest.approx((-78, 78))


@pytest.mark.parametrize(
    ("dimensions", "coordinates"),
    [
        (("time", "siglay", "node"), {"lat": ("node",), "lon": ("node",)}),  # FVCOM
        (("time", "nSCHISM_hgrid_node", "nSCHISM_vgrid_layers"), {}),
        (("time", "levgrnd", "lndgrid"), {"lat": ("lndgrid",), "lon": ("lndgrid",)}),  # CLM
        (("time", "foo", "ncol"), {}),  # CAM-SE
        (("time", "here", "foo"), {"lat": ("here",), "lon": ("here",)}),
    ],
)
def test_an_unknown_axis_beside_cells_is_no_row(tmp_path: Path, dimensions, coordinates) -> None:
    variables = {name: (dimensions, ramp(0, (2, 5, 5))) for name in ("x", "y")}
    variables |= {name: (along, np.arange(5.0)) for name, along in coordinates.items()}
    units = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, **{name: units[name] for name in coordinates})
    (level,) = {*dimensions} - {"time", "node", "nSCHISM_hgrid_node", "lndgrid", "ncol", "here"}
    with pytest.raises(DataError, match=rf"dimension {level} of size 5 is neither .* as in x\[{level}=0\]"):
        source_of(path, "[x]", "[y]")


def test_reports_of_stations_are_read_and_said(tmp_path: Path) -> None:
    variables = {name: (("station", "obs"), ramp(0, (3, 4))) for name in ("x", "y")}
    variables |= {name: (("station",), np.arange(3.0)) for name in ("lat", "lon")}
    units = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    source = source_of(write_netcdf(tmp_path / "f.nc", variables, "", None, **units), "[x]", "[y]")
    assert len(read_all(source)) == 12
    assert any("obs is assumed to be" in line for line in source.notices)


def test_a_cell_name_beside_rows_and_columns_is_a_level(tmp_path: Path) -> None:
    along = ("time", "node", "lat", "lon")
    path = write_netcdf(tmp_path / "f.nc", {name: (along, ramp(0, (2, 3, 4, 5))) for name in ("x", "y")}, "", None)
    with pytest.raises(DataError, match=r"dimension node of size 3 is neither .*x\[node=0\]"):
        source_of(path, "[x]", "[y]")


@pytest.mark.parametrize(
    ("dimensions", "guessed"),
    [
        (("time", "foo", "lon"), ["foo is assumed to be rows"]),
        (("foo", "bar"), ["foo is assumed to be rows", "bar is assumed to be columns"]),
        (("time", "nj", "ni"), []),
        (("obs",), []),
    ],
)
def test_a_guess_is_said(tmp_path: Path, dimensions, guessed) -> None:
    shape = (2, 3, 4)[-len(dimensions) :]
    path = write_netcdf(tmp_path / "f.nc", {name: (dimensions, ramp(0, shape)) for name in ("x", "y")}, "", None)
    told = [line for line in source_of(path, "[x]", "[y]").notices if "because of its position" in line]
    assert [words for words, line in zip(guessed, told, strict=True) if words in line] == guessed


# Times


def test_a_mean_that_is_stamped_at_the_end_of_its_month_is_of_that_month(make):
    make("cice_month_end")
    clocks, aice = columns_of("iceh.2001.nc", "[month, year, day_of_year]", "[aice_h]")
    assert {(int(one), round(float(a) * 100)) for one, a in zip(clocks[:, 0], aice[:, 0], strict=True)} == {
        (one, one) for one in range(1, 13)
    }
    assert (set(clocks[:, 1]), clocks[0, 2]) == ({2001}, 16.5)
    tair, aice = columns_of(
        "iceh.2001.nc", "[Tair_h]", "[aice_h]", "domain.mask=time >= 2001-02-01 and time < 2001-03-01"
    )
    assert (len(aice), *facts(aice)[:1], *facts(tair)[1:3]) == (48, pytest.approx(0.02), -18, pytest.approx(-17.3))
    (line,) = [one for one in source_of("iceh.2001.nc", "[month]", "[aice_h]").notices if "time_bounds" in one]
    assert "is at an end of each averaging interval" in line


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
@pytest.mark.parametrize("end", [0, 1])
def test_a_climatology_that_is_stamped_at_an_end_has_its_months(tmp_path: Path, calendar: str, end: int) -> None:
    """Means within years over 1961 to 1990, stamped at the start of the first interval or at the end of the last."""
    firsts = [cftime.datetime(1961, month, 1, calendar=calendar) for month in range(1, 13)]
    lasts = [cftime.datetime(1990 + month // 12, month % 12 + 1, 1, calendar=calendar) for month in range(1, 13)]
    path = write_climatology(tmp_path / "f.nc", list(zip(firsts, lasts, strict=True)), calendar, end)
    months, _ = columns_of(path, "[month, day_of_year]", "[y]")
    assert months[::6, 0].tolist() == list(range(1, 13))
    assert months[0, 1] == pytest.approx(16.5, abs=1)


# The middle of 1990 and of 2020: the mean of the first and the last day, counted from 1.
@pytest.mark.parametrize(
    ("calendar", "middles"), [("noleap", [183.5, 183.5]), ("360_day", [181, 181]), ("all_leap", [184, 184])]
)
@pytest.mark.parametrize("end", [0, 1])
def test_a_climatology_of_whole_years_is_dated_in_the_middle_of_the_last(
    tmp_path: Path, calendar: str, middles: list[float], end: int
) -> None:
    """Means of all months over 1961 to 1990, and over 1991 to 2020."""
    path = climatology_of_years(tmp_path / "f.nc", calendar, end)
    clocks, _ = columns_of(path, "[year, month, day_of_year]", "[y]")
    assert clocks[::6].tolist() == [[1990, 7, middles[0]], [2020, 7, middles[1]]]


@pytest.mark.parametrize("end", [0, 1])
def test_a_climatology_of_whole_years_in_the_standard_calendar(tmp_path: Path, end: int) -> None:
    """Thirty years are 10957 days with seven leap days, 10958 with eight: a little less and more than whole years."""
    clocks, _ = columns_of(
        climatology_of_years(tmp_path / "f.nc", "standard", end), "[year, month, day_of_year]", "[y]"
    )
    assert clocks[::6, :2].tolist() == [[1990, 7], [2020, 7]]
    (first, *_), (last, *_) = clocks[:6, 2], clocks[6:, 2]
    assert first == pytest.approx(366 - 365.2425 / 2, abs=1e-4)
    # The mean year of the calendar, or what the eight leap days leave of it: a day.
    assert last == pytest.approx(367 - 365.2425 / 2, abs=1e-4)


def climatology_of_years(path: Path, calendar: str, end: int) -> Path:
    """Write two means over thirty years each."""
    years = [(1961, 1991), (1991, 2021)]
    dates = [tuple(cftime.datetime(year, 1, 1, calendar=calendar) for year in one) for one in years]
    return write_climatology(path, dates, calendar, end)


def write_climatology(path: Path, intervals: list[tuple[Any, ...]], calendar: str, end: int) -> Path:
    """Write a mean over each interval of two dates, stamped at its start (0) or its end (1)."""
    units = "days since 1961-01-01"
    bounds = cftime.date2num(intervals, units, calendar).astype("f8")
    variables = {
        "time": (("time",), bounds[:, end]), "climatology_bounds": (("time", "nv"), bounds),
        "lat": (("lat",), np.arange(2.0)), "lon": (("lon",), np.arange(3.0)),
        **dict.fromkeys("xy", (("time", "lat", "lon"), np.zeros((len(bounds), 2, 3), "f4"))),
    }  # fmt: skip
    time = {"units": units, "calendar": calendar, "climatology": "climatology_bounds"}
    methods = {"cell_methods": "time: mean within years time: mean over years"}
    return write_netcdf(path, variables, "", None, time=time, x=methods, y=methods)


@pytest.mark.parametrize("methods", ["time: point", ""])
def test_times_of_what_is_no_mean_stay(make, methods: str) -> None:
    make("cice_month_end")
    with netCDF4.Dataset("iceh.2001.nc", "a") as file:
        for name in ("aice_h", "Tair_h"):
            file[name].cell_methods = methods
    source = source_of("iceh.2001.nc", "[month]", "[aice_h]")
    assert read_all(source).inputs[0] == 2
    assert not any("time_bounds" in line for line in source.notices)


def test_a_first_record_without_an_interval_keeps_its_time(make):
    make("cice_month_end")
    with netCDF4.Dataset("iceh.2001.nc", "a") as file:
        file["time"][0] = 0.0
        file["time_bounds"][0] = 0.0
    clocks, _ = columns_of("iceh.2001.nc", "[day_of_year]", "[aice_h]")
    assert clocks[[0, 48], 0].tolist() == [1, 46]


@pytest.mark.parametrize("unwritten", [0.0, np.nan])
def test_bounds_that_were_never_written_are_not_believed(make, unwritten: float) -> None:
    make("cice_month_end")
    with netCDF4.Dataset("iceh.2001.nc", "a") as file:
        file["time_bounds"][3:] = unwritten
    clocks, _ = columns_of("iceh.2001.nc", "[month]", "[aice_h]")
    assert clocks[0] == 2


def test_stamps_within_their_interval_stay(make):
    make("cice_month_end")
    with netCDF4.Dataset("iceh.2001.nc", "a") as file:
        file["time"][:] = file["time"][:] - 11
    clocks, _ = columns_of("iceh.2001.nc", "[day_of_year]", "[aice_h]")
    assert clocks[0] == 21


@pytest.mark.parametrize("file", ["named.nc", "iri.nc"])
def test_months_of_a_calendar_of_360_days_by_either_name(make, file: str) -> None:
    make("iri_months_360")
    clocks, rain = columns_of(file, "[month, year, nino]", "[prcp]")
    assert {(int(one), round(float(mm)) // 10) for one, mm in zip(clocks[:, 0], rain[:, 0], strict=True)} == {
        (one, one) for one in range(1, 13)
    }
    assert (len(rain), set(clocks[:, 1])) == (480, {1960, 1961})


def test_a_calendar_that_nobody_knows_is_named(make):
    make("iri_months_360")
    with netCDF4.Dataset("iri.nc", "a") as file:
        file["T"].calendar = "mayan"
    with pytest.raises(DataError, match=r"iri.nc: the calendar of T is 'mayan', .*360_day"):
        source_of("iri.nc", "[month]", "[prcp]")
    assert len(read_all(source_of("iri.nc", "[nino]", "[prcp]"))) == 480


@pytest.mark.parametrize("clock", ["month", "year", "day_of_year", "hour_of_day", "time"])
def test_a_missing_time_is_a_missing_sample(make, clock: str) -> None:
    make("masked_time")
    clocks, _ = columns_of("gaps.nc", f"[{clock}, a]", "[b]")
    assert np.isnan(clocks[:, 0]).sum() == 20
    assert clock != "month" or (np.nanmin(clocks[:, 0]), np.nanmax(clocks[:, 0])) == (1, 6)


def test_times_of_two_calendars_keep_their_dates(make):
    make("two_calendars")
    for paths, first in (("[standard.nc, noleap.nc]", "2000-01-01"), ("[noleap.nc, standard.nc]", "2000-01-01")):
        found = open_coordinates(source_of(paths, "[a]", "[b]"))
        times = found.attributes["time"]
        dates = netCDF4.num2date(found.times, times["units"], times["calendar"])
        shown = [date.strftime("%Y-%m-%d") for date in dates]
        assert (shown[0], set(shown)) == (first, {f"200{year}-01-0{day}" for year in (0, 1) for day in (1, 2, 3)})


def test_the_time_and_the_places_of_wrf(make):
    make("wrf_xtime_xlat")
    _, north = columns_of("wrfout.nc", "[U10]", "[T2]", "domain.latitude_range=[60, 70]")
    assert (len(north), *facts(north)) == (168, 266, 262, 270, 0)
    hours, _ = columns_of("wrfout.nc", "[hour_of_day]", "[T2]")
    assert (len(hours), *facts(hours)) == (336, 10.5, 0, 21, 0)
    assert len(columns_of("wrfout.nc", "[U10]", "[T2]", "domain.mask=time >= 2020-01-01T12:00")[0]) == 168
    found = open_coordinates(source_of("wrfout.nc", "[U10]", "[T2]"))
    assert (found.times[-1], found.attributes["time"]["units"]) == (1260, "minutes since 2020-01-01 00:00:00")


# Values that are stored otherwise


@pytest.mark.parametrize("store", ["plain.zarr", "sharded.zarr"])
def test_a_chunk_that_is_not_stored_is_the_fill_value(make, store: str) -> None:
    make("zarr_dry_chunks")
    source = source_of(store, "[rain]", "[tair]")
    samples = read_all(source)
    assert facts(samples.inputs) == (pytest.approx(7 / 6), 0, 5, 0)
    assert (facts(samples.targets)[0], len(samples)) == (282.5, 384)
    told = [line for line in source.notices if "8 of its 12 chunks are not stored, and are read as 0" in line]
    assert len(told) == int(store == "plain.zarr")


def test_a_chunk_of_version_2_without_a_fill_value_is_told(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "f.zarr"), mode="w", zarr_format=2)
    for name in ("x", "y"):
        group.create_array(name, shape=(4,), chunks=(2,), dtype="f4", fill_value=None)[:] = np.arange(4.0) + 1
    (tmp_path / "f.zarr" / "x" / "1").unlink()
    source = source_of(tmp_path / "f.zarr", "[x]", "[y]")
    assert read_all(source).inputs[:, 0].tolist() == [1, 2, 0, 0]
    assert any("'x': 1 of its 2 chunks are not stored, and are read as 0" in line for line in source.notices)


def test_a_chunk_that_is_not_stored_beside_a_rotated_pole_is_told(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "f.zarr"), mode="w", zarr_format=3)
    axes = {"rlat": [-1.0, 0.0, 1.0], "rlon": [0.0, 1.0, 2.0, 3.0]}
    for name, values in axes.items():
        one = group.create_array(name, shape=(len(values),), dtype="f8", dimension_names=(name,))
        one[:] = values
        one.attrs.update(
            {"standard_name": {"rlat": "grid_latitude", "rlon": "grid_longitude"}[name], "units": "degrees"}
        )
    pole = group.create_array("rotated_pole", shape=(), dtype="i4")
    pole.attrs.update({"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25,
                       "grid_north_pole_longitude": -162.0})  # fmt: skip
    for name in ("x", "y"):
        one = group.create_array(
            name, shape=(3, 4), chunks=(1, 4), dtype="f4", fill_value=0, dimension_names=tuple(axes)
        )
        one[:] = np.arange(12.0).reshape(3, 4) + 1
        one.attrs["grid_mapping"] = "rotated_pole"
    (tmp_path / "f.zarr" / "x" / "c" / "1" / "0").unlink()
    source = source_of(tmp_path / "f.zarr", "[x, lat]", "[y]")
    assert len(read_all(source)) == 12
    assert any("'x': 1 of its 3 chunks are not stored, and are read as 0" in line for line in source.notices)


COLUMNS = {"snowing": (5 / 9, 0, 1, 20), "depth": (1.65131579, 0.125, 3.125, 10), "count": (8, 7, 9, 8),
           "class": (15, 10, 20, 0)}  # fmt: skip


@pytest.mark.parametrize("column", COLUMNS)
def test_each_kind_of_number_in_a_table_is_read(make, column: str) -> None:
    make("parquet_nullable")
    values, _ = columns_of("stations.parquet", f"[{column}]", "[temp]")
    assert facts(values) == tuple(pytest.approx(one) for one in COLUMNS[column])


def test_truth_values_with_gaps_in_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("snowing,depth\ntrue,1.5\nfalse,\n,2.5\n")
    snowing, depth = columns_of(tmp_path / "f.csv", "[snowing]", "[depth]")
    assert np.array_equal(snowing[:, 0], [1, 0, np.nan], equal_nan=True)
    assert np.array_equal(depth[:, 0], [1.5, np.nan, 2.5], equal_nan=True)


@pytest.mark.parametrize(
    ("values", "kind"),
    [([[1.0], [2.0]], "list<"), ([{"a": 1}, None], "struct<"), (pa.array([1, 2], pa.time32("ms")), "time32[ms]")],
)
def test_what_is_no_number_is_named_as_it_is(tmp_path: Path, values, kind: str) -> None:
    pq.write_table(pa.table({"x": values, "y": [1.0, 2.0]}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match="x") as caught:
        source_of(tmp_path / "f.parquet", "[x]", "[y]")
    assert f"it holds {kind}" in str(caught.value)
