"""Places in radians, lags across grids, longitudes that are none, two calendars of one date, marks of no value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, read_all, write_netcdf

from mpitrain.data.dataset.dataset import DataSummary
from mpitrain.data.files.absolute_time import days_of_dates
from mpitrain.data.moments import Moments
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.variable_access import turned
from mpitrain.errors import DataError

LATITUDES = np.array([-60.0, -10.0, 20.0, 50.0])
LONGITUDES = np.array([0.0, 90.0, 180.0, 270.0, 359.0])


def source_of(path: Path | list[Path], *settings: str, inputs: str = "[x]"):
    files = f"[{', '.join(map(str, path))}]" if isinstance(path, list) else path
    return open_source(selection_of(config_of(files, f"variables.input_variables={inputs}", *settings)))


def write_grid(path: Path, latitudes=LATITUDES, longitudes=LONGITUDES, first_day: int = 0, **attributes: dict) -> Path:
    """`x` and `y` (time, lat, lon) of two days; `attributes` of the coordinates."""
    shape = (2, len(latitudes), len(longitudes))
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    variables = {
        "time": (("time",), first_day + np.arange(2.0)), "lat": (("lat",), latitudes), "lon": (("lon",), longitudes),
        **dict.fromkeys("xy", (("time", "lat", "lon"), values)),
    }  # fmt: skip
    usual = {
        "time": {"units": "days since 2000-01-01"},
        "lat": {"units": "degrees_north"},
        "lon": {"units": "degrees_east"},
    }
    return write_netcdf(path, variables, "", None, **{**usual, **attributes})


RADIANS = {name: {"units": "radians"} for name in ("lat", "lon")}


@pytest.mark.parametrize("inputs", ["[x]", "[x, lat, lon]"])
@pytest.mark.parametrize("named", [False, True])
def test_ranges_and_areas_of_places_in_radians_are_those_of_degrees(tmp_path: Path, inputs: str, named: bool) -> None:
    write_grid(tmp_path / "degrees.nc")
    write_grid(tmp_path / "radians.nc", np.radians(LATITUDES), np.radians(LONGITUDES), **RADIANS)
    by_hand = ["data.coordinates={latitude: lat, longitude: lon}"] if named else []
    settings = (
        "domain.latitude_range=[-30, 60]",
        "domain.longitude_range=[80, 200]",
        "training.area_weighted_loss=true",
        *by_hand,
    )
    degrees, radians = (read_all(source_of(tmp_path / f"{name}.nc", *settings, inputs=inputs))
                        for name in ("degrees", "radians"))  # fmt: skip
    assert radians.inputs[:, 0].tolist() == degrees.inputs[:, 0].tolist()
    assert len(degrees) == 2 * 3 * 2
    np.testing.assert_allclose(radians.weights, degrees.weights, rtol=1e-6)
    assert radians.inputs[:, 1:].max(initial=0.0) <= np.pi, "an input keeps its units"


@pytest.mark.parametrize("learnt", ["radians", "degrees"])
def test_ranges_areas_and_turns_are_right_in_units_that_a_network_has_learnt(tmp_path: Path, learnt: str) -> None:
    """A file of the other units is converted for the network, and its places are compared as degrees still."""
    pytest.importorskip("cf_units")
    write_grid(tmp_path / "degrees.nc", LATITUDES, LONGITUDES - 180, lat={"units": "degrees"}, lon={"units": "degrees"})
    write_grid(tmp_path / "radians.nc", np.radians(LATITUDES), np.radians(LONGITUDES - 180), **RADIANS)
    path = tmp_path / ("degrees.nc" if learnt == "radians" else "radians.nc")
    settings = "domain.latitude_range=[-30, 60]", "training.area_weighted_loss=true"
    selection = selection_of(config_of(path, "variables.input_variables=[x, lat, lon]", *settings))
    turn = 2 * np.pi if learnt == "radians" else 360.0
    found = read_all(
        open_source(replace(selection, units={"lat": learnt, "lon": learnt}, longitude_ranges={"lon": (0.0, turn)}))
    )
    assert len(found) == 2 * 3 * 5
    in_degrees = found.inputs[:, 1:] * (180 / np.pi if learnt == "radians" else 1)
    np.testing.assert_allclose(found.weights[:, 0], np.cos(np.radians(in_degrees[:, 0])), rtol=1e-5)
    np.testing.assert_allclose(np.unique(np.round(in_degrees[:, 1])), [0, 90, 179, 180, 270])


LAGGED = "['x[time-1]']"


def test_places_that_are_not_those_of_the_samples_do_not_matter_to_a_lag(tmp_path: Path) -> None:
    """Places of something else, or in words."""
    for number, size in enumerate((5, 6)):
        series = (("time",), np.arange(4, dtype="f4"))
        variables = {
            "time": (("time",), 4.0 * number + np.arange(4.0)), "x": series, "y": series,
            "lat": (("storm",), np.arange(size, dtype="f4")), "lon": (("letters",), np.array([*"12.5W"], "S1")),
        }  # fmt: skip
        write_netcdf(tmp_path / f"{number}.nc", variables, "", None, time={"units": "days since 2000-01-01"})
    assert len(read_all(source_of([tmp_path / "0.nc", tmp_path / "1.nc"], inputs=LAGGED))) == 7


def test_levels_alone_are_no_columns_of_a_grid(tmp_path: Path) -> None:
    values = dict.fromkeys("xy", (("time", "lat", "lon"), np.zeros((2, 3, 4), "f4")))
    values |= dict.fromkeys(("lev", "hyam"), (("lev",), np.arange(4.0)))
    write_netcdf(tmp_path / "f.nc", values, "", None, lev={"axis": "Z"})
    with pytest.raises(DataError, match=r"f.nc: variable 'hyam' \(lev=4\) has dimension lev, .* as in hyam\[lev=0\]$"):
        source_of(tmp_path / "f.nc", inputs="[x, hyam]")
    assert len(read_all(source_of(tmp_path / "f.nc", inputs="[x, 'hyam[lev=1]']"))) == 24


def test_places_of_many_dated_reports_are_read_at_once(tmp_path: Path) -> None:
    number = 2000
    days = np.datetime64("2001-01-01") + np.arange(number)
    columns = {
        "x": np.arange(number),
        "y": np.arange(number),
        "lat": np.arange(number) / 50,
        "lon": np.arange(number) / 9,
    }
    for part in (0, 1):
        np.savez(
            tmp_path / f"{part}.npz", when=days + part * number, **{name: one + part for name, one in columns.items()}
        )
    source = source_of([tmp_path / "0.npz", tmp_path / "1.npz"], inputs="[x, month]")
    found = open_coordinates(source).at(np.arange(3, 2 * number, 7))
    expected = np.concatenate([columns["lat"], columns["lat"] + 1])[3::7]
    np.testing.assert_array_equal(found["lat"], expected)
    np.testing.assert_array_equal(
        found["time"], (days[0] - np.datetime64("1970-01-01")).astype(int) + np.arange(3, 2 * number, 7)
    )
    assert sorted(set(read_all(source).inputs[:, 1].tolist())) == list(range(1, 13))


def test_dates_keep_what_is_finer_than_a_millisecond() -> None:
    dates = np.datetime64("2001-01-01T00:00:00", "us") + np.arange(3) * np.timedelta64(200, "us")
    assert (np.diff(days_of_dates(dates)) > 0).all()
    with_gap = np.append(dates.astype("M8[s]"), np.datetime64("NaT"))
    np.testing.assert_array_equal(days_of_dates(with_gap), [11323.0] * 3 + [np.nan])


def test_a_lag_into_a_file_of_other_places_is_refused(tmp_path: Path) -> None:
    first = write_grid(tmp_path / "1.nc")
    for name, latitudes, longitudes in (("flipped", LATITUDES[::-1], LONGITUDES), ("moved", LATITUDES, LONGITUDES + 1)):
        second = write_grid(tmp_path / f"{name}.nc", latitudes, longitudes, 2)
        with pytest.raises(
            DataError, match=rf"{name}.nc: its 'l(at|on)' differs from that of .*1.nc, but lagged variables"
        ):
            source_of([first, second], inputs=LAGGED)
        assert len(read_all(source_of([first, second]))) == 80
        held_out = source_of(first, f"data.validation_path={second}", inputs=LAGGED)
        assert held_out.files[1].path == second


def test_a_lag_into_a_file_whose_longitudes_are_a_turn_away_is_none_elsewhere(tmp_path: Path) -> None:
    first = write_grid(tmp_path / "1.nc")
    second = write_grid(tmp_path / "2.nc", LATITUDES, np.where(LONGITUDES > 180, LONGITUDES - 360, LONGITUDES), 2)
    assert len(read_all(source_of([first, second], inputs=LAGGED))) == 60


def test_numbers_far_from_any_longitude_are_not_turned() -> None:
    found = turned(np.array([-170.0, 190.0, 530.0, -790.2, 1e20, np.nan]), (-180.0, 180.0), 360.0)
    np.testing.assert_array_equal(found, [-170.0, -170.0, 170.0, -790.2, 1e20, np.nan])


@pytest.mark.parametrize("day", [0, -200_000])
def test_dates_are_of_one_calendar_from_1582_on(tmp_path: Path, day: int) -> None:
    files = [
        write_grid(tmp_path / f"{calendar}.nc", first_day=day + number,
                   time={"units": "days since 2000-01-01", "calendar": calendar})
        for number, calendar in ((0, "standard"), (2, "proleptic_gregorian"))
    ]  # fmt: skip
    if day < 0:
        with pytest.raises(DataError, match="use files of one calendar"):
            source_of(files, inputs="[x, day_of_year]")
    else:
        days = read_all(source_of(files, inputs="[x, day_of_year]")).inputs[:, 1]
        assert sorted(set(days.tolist())) == [1, 2, 3, 4]


MARKS = {
    "9999": (np.r_[np.full(95, 12.0) + np.arange(95) / 10, np.full(5, 9999.0)], 9999.0),
    "-999.9": (np.r_[np.arange(99.0), -999.9], np.float32(-999.9)),
    "-1e34": (np.r_[np.arange(99.0), -1e34], -1e34),
    "none": (np.r_[np.arange(990.0, 1000.0)], None),
    "an outlier": (np.r_[np.arange(99.0), 5000.0], None),
    "large numbers": (1e19 + 1e18 * np.r_[np.sin(np.arange(999.0)), 4.0], None),
    "pressures": (np.r_[970.0 + np.sin(np.arange(500)), 999.0], None),
    "percent": (np.r_[np.zeros(500), 99.9], None),
    "a constant": (np.full(7, 999.9), None),
    "nothing": (np.full(7, np.inf), None),
}


@pytest.mark.parametrize("kind", MARKS)
def test_marks_of_no_value_are_found(kind: str) -> None:
    values, expected = MARKS[kind]
    with np.errstate(invalid="ignore"):
        one = [np.array([number]) for number in (len(values), values.mean(), ((values - values.mean()) ** 2).sum())]
    moments = Moments(*one, np.array([values.min()]), np.array([values.max()]))
    summary = DataSummary(len(values), 0, 0, None, moments, ("x",), ())
    assert list(summary.probable_fill_values.values()) == ([] if expected is None else [pytest.approx(expected)])
