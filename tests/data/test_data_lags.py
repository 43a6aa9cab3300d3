"""A lag is a step of time: over gaps, in tables and on grids, in any order of rows and files; `row` counts rows.

Values are the numbers of days or months, so that what a lag must give is known.
"""

from pathlib import Path

import h5py
import numpy as np
import pandas
import pytest
from field_files import COLUMNS, ROWS, config_of, read_all, write_netcdf

from mpitrain.cli.main import main
from mpitrain.data.describe.times import dates_of, numbers_of
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.times.lags import Lag, Series, find_step, lagged_levels, show_step
from mpitrain.errors import ConfigError, DataError

DAYS = "days since 2000-01-01"


def lagged(path, reference, *settings, target_bytes=2**20):
    """Return y, x at the lag, and the notices of a source."""
    config = config_of(path, f"variables.input_variables=['{reference}']", *settings)
    source = open_source(selection_of(config), target_bytes)
    samples = read_all(source)
    return samples.targets[:, 0], samples.inputs[:, 0], source.notices


def daily_table(path: Path, days: np.ndarray) -> Path:
    when = np.datetime64("2000-01-01") + days.astype("timedelta64[D]")
    rows = [f"{one},{number},{number}\n" for one, number in zip(when, days, strict=True)]
    path.write_text("date,x,y\n" + "".join(rows))
    return path


def some_days() -> np.ndarray:
    kept = np.ones(100, dtype=bool)
    kept[[5, 17, 18, 60]] = False
    return np.flatnonzero(kept)


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
@pytest.mark.parametrize(("lag", "missing"), [(-1, 3), (-2, 4), (1, 3)])
def test_a_lag_of_a_table_is_a_day_whatever_rows_are_left_out(tmp_path, order, lag, missing):
    days = some_days()
    there = np.isin(days + lag, days)
    if order != "rising":
        days = days[::-1] if order == "falling" else np.random.default_rng(0).permutation(days)
    y, x, notices = lagged(daily_table(tmp_path / "f.csv", days), f"x[time{lag:+d}]")
    assert sorted(y) == sorted(days[np.isin(days + lag, days)])
    assert len(y) == there.sum() == len(days) - missing - abs(lag)
    assert (x - y == lag).all()
    (line,) = [line for line in notices if "leaves out" in line]
    steps, side = ("step" if abs(lag) == 1 else "steps"), "before" if lag < 0 else "after"
    assert (
        f"[time{lag:+d}] leaves out {missing} of 96 times: there is no time {abs(lag)} {steps} of 1 day {side} them"
        in line
    )
    assert f"; [row{lag:+d}] counts rows, regardless of their times" in line


def test_row_counts_rows_and_older_rules_do_too(tmp_path):
    days = some_days()
    path = daily_table(tmp_path / "f.csv", days)
    for reference, settings in (("x[row-1]", ()), ("x[time-1]", ("data.rules=1",))):
        y, x, notices = lagged(path, reference, *settings)
        assert np.array_equal(y, days[1:])
        assert np.array_equal(x, days[:-1])
        assert not any("leaves out" in line for line in notices)


def monthly_file(path: Path, months: np.ndarray, units: str = DAYS, calendar: str = "standard") -> Path:
    """Means of months from 2000 on, stamped in their middles; x and y are the numbers of the months."""
    dates = dates_of([0.0], DAYS, calendar)
    stamps = [dates[0].replace(year=2000 + month // 12, month=1 + month % 12, day=15) for month in months.tolist()]
    values = np.broadcast_to(months[:, None, None], (len(months), ROWS, COLUMNS)).astype("f4")
    variables = {name: (("time", "nj", "ni"), values) for name in ("x", "y")}
    variables |= {"time": (("time",), numbers_of(np.array(stamps), units, calendar))}
    return write_netcdf(path, variables, "", None, time={"units": units, "calendar": calendar})


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
@pytest.mark.parametrize("target_bytes", [100, 2**20])
def test_months_are_equal_and_a_year_that_is_missing_is_no_step(tmp_path, calendar, target_bytes):
    years = {"b": 3, "a": 0, "c": 1}  # in this order; the year 2 is missing
    for name, year in years.items():
        monthly_file(tmp_path / f"{name}.nc", 12 * year + np.arange(12), DAYS, calendar)
    files = f"[{', '.join(str(tmp_path / f'{name}.nc') for name in years)}]"
    step = "30 days" if calendar == "360_day" else "1 month"
    for lag, num_months in ((-1, 36 - 2), (-12, 12)):
        y, x, notices = lagged(files, f"x[time{lag}]", target_bytes=target_bytes)
        assert len(y) == num_months * ROWS * COLUMNS
        assert (x - y == lag).all()
        assert any(f"{abs(lag)} step" in line and f"of {step} before them" in line for line in notices)


def test_of_hours_each_is_found_and_held_out_files_are_a_series_of_their_own(tmp_path):
    def file(name, hours):
        values = np.broadcast_to(hours[:, None, None], (len(hours), ROWS, COLUMNS)).astype("f4")
        variables = {one: (("time", "nj", "ni"), values) for one in ("x", "y")}
        units = {"time": {"units": "hours since 2000-01-01"}}
        return write_netcdf(tmp_path / name, variables | {"time": (("time",), hours)}, "", None, **units)

    trained, held = file("a.nc", np.array([0.0, 6, 12, 24, 30])), file("b.nc", np.array([36.0, 42]))
    y, x, _ = lagged(trained, "x[time-1]", f"data.validation_path={held}")
    assert sorted(set(y)) == [6, 12, 30, 42]
    assert (y - x == 6).all()


def test_rows_without_a_time_have_no_lag_and_times_there_twice_are_refused(tmp_path):
    when = np.datetime64("2000-01-01") + np.arange(6)
    when[3] = np.datetime64("NaT")
    np.savez(tmp_path / "f.npz", when=when, x=np.arange(6.0), y=np.arange(6.0))
    y, x, notices = lagged(tmp_path / "f.npz", "x[time-1]")
    assert (y.tolist(), x.tolist()) == ([1, 2, 5], [0, 1, 4])
    assert any("leaves out 1 of 6 rows, which have no time" in line for line in notices)
    when[3] = when[2]
    np.savez(tmp_path / "g.npz", when=when, x=np.arange(6.0), y=np.arange(6.0))
    with pytest.raises(DataError, match=r"g.npz: two of its times are equal, .* or use \[row-1\]"):
        lagged(tmp_path / "g.npz", "x[time-1]")
    assert len(lagged(tmp_path / "g.npz", "x[row-1]")[0]) == 5


def test_without_times_a_lag_counts_levels(tmp_path):
    values = np.broadcast_to(np.arange(6.0)[:, None, None], (6, ROWS, COLUMNS))
    path = write_netcdf(tmp_path / "f.nc", {name: (("time", "nj", "ni"), values) for name in ("x", "y")})
    y, x, notices = lagged(path, "x[time-1]")
    assert (y - x == 1).all()
    assert len(y) == 5 * ROWS * COLUMNS
    assert not any("leaves out" in line for line in notices)


@pytest.mark.parametrize("kind", ["f.csv", "f.npz", "f.h5"])
def test_in_a_table_without_times_a_lag_counts_rows(tmp_path, kind):
    x = np.arange(50.0)
    if kind == "f.npz":
        np.savez(tmp_path / kind, x=x, y=x)
    elif kind == "f.h5":
        with h5py.File(tmp_path / kind, "w") as file:
            file["x"], file["y"] = x, x
    else:
        (tmp_path / kind).write_text("x,y\n" + "".join(f"{one},{one}\n" for one in x))
    for reference in ("x[row-1]", "x[time-1]"):
        y, earlier, notices = lagged(tmp_path / kind, reference)
        assert np.array_equal(y, x[1:])
        assert np.array_equal(earlier, x[:-1])
        told = f"{tmp_path / kind}: [time-1] counts rows in the order of the files: they have no times"
        assert (told in notices) == (reference == "x[time-1]")
    assert len(lagged(tmp_path / kind, "x[time-1]", "data.rules=1")[0]) == 0


@pytest.mark.parametrize(
    ("times", "step", "words"),
    [
        ([0, 1, 2, 5, 6], 1.0, "1 day"),
        ([0.0, 0.25, 0.5, 1.0], 0.25, "6 hours"),
        ([3, 0, 2, 1], 1.0, "1 day"),
        ([0, 31, 60, 91], 91 / 3, "1 month"),
        ([0, 366, 731, 1096], 1096 / 3, "1 year"),
        ([0, 10, 20, 50], 10.0, "10 days"),
        (np.arange(4) / 86400, 1 / 86400, "1 second"),
        (np.delete(np.arange(100), 50) * 0.033 / 86400, 0.033 / 86400, "33 milliseconds"),
        (np.arange(2000, dtype=np.float32) / np.float32(24), 1 / 24, "1 hour"),
        (np.arange(500) / 144 + np.random.default_rng(0).uniform(-40, 40, 500) / 86400, 1 / 144, "10 minutes"),
        ([0, 1, 3, 8, 9.5, 30, 100, 101.2], None, None),
        ([4.0], None, None),
    ],
)
def test_the_step_of_times_is_the_mean_of_the_most_frequent(times, step, words):
    times = np.asarray(times)
    found = find_step(
        (10957.0 + times.astype("f8")) if times.dtype != np.float32 else (np.float32(10957) + times).astype("f8")
    )
    assert found == pytest.approx(step, rel=2e-3) if step else found is None
    assert words is None or found is None or show_step(found) == words


def levels_at(times, *steps):
    nothing = np.zeros(len(times), dtype=bool)
    series = Series(0, np.asarray(times), len(times), (Path("f"),), (0,), nothing, nothing.astype(int))
    lags = [Lag(one) for one in steps]
    found, _ = lagged_levels([series], lags, find_step(series.times) or 0.0)
    return [found[one] for one in lags]


def test_a_time_that_is_a_little_late_is_that_step():
    times = 10957.0 + np.array([0, 1.01, 1.99, 3, 4.3, 5, 6.01, 7])
    assert levels_at(times, -1)[0].tolist() == [-1, 0, 1, 2, -1, -1, 5, 6]


def test_long_lags_of_rounded_times_and_of_months_are_as_many_rows():
    hours = (np.float32(10957) + np.arange(2000, dtype=np.float32) / np.float32(24)).astype("f8")
    late = 10957.0 + np.arange(1000) / 144 + np.random.default_rng(0).uniform(-40, 40, 1000) / 86400
    months = numbers_of(
        dates_of(np.arange(241.0), "months since 2000-01-15", "standard"), "days since 1970-01-01", "standard"
    )
    for times, steps in ((hours, (-24, -129)), (late, (-1, -24)), (np.insert(months, 100, months[99] + 9), (-12,))):
        for lag, found in zip(steps, levels_at(times, *steps), strict=True):
            known = found >= 0
            assert known.mean() > 0.85
            assert (np.abs(times[known] - times[found[known]] + lag * find_step(times)) < 0.3 * find_step(times)).all()


def test_a_lag_has_the_step_of_training(tmp_path):
    daily = daily_table(tmp_path / "daily.csv", np.arange(50))
    mondays = daily_table(tmp_path / "mondays.csv", 60 + 7 * np.arange(10))
    y, x, _ = lagged(daily, "x[time-1]", f"data.validation_path={mondays}")
    assert y.max() == 49
    assert (y - x == 1).all()
    assert len(lagged(mondays, "x[time-1]")[0]) == 9
    assert len(lagged(mondays, "x[time-7]", "data.lag_step_days=1")[0]) == 9
    assert not len(lagged(mondays, "x[time-1]", "data.lag_step_days=1")[0])


def test_files_held_out_without_times_change_nothing_of_the_others(tmp_path):
    values = np.broadcast_to(np.arange(6.0)[:, None, None], (6, ROWS, COLUMNS))
    variables = {name: (("time", "nj", "ni"), values) for name in ("x", "y")}
    days = {"time": (("time",), np.array([0.0, 1, 2, 3, 5, 6]))}
    dated = write_netcdf(tmp_path / "a.nc", variables | days, "", None, time={"units": DAYS})
    undated = write_netcdf(tmp_path / "b.nc", variables)
    _, _, notices = lagged(dated, "x[time-1]", f"data.validation_path={undated}")
    assert any("a.nc: [time-1] leaves out 1 of 6 times" in line for line in notices)
    assert any(
        "b.nc: [time-1] counts time levels in the order of the files: not all of them have" in line for line in notices
    )
    y, _, notices = lagged(f"[{undated}, {dated}]", "x[time-1]")
    assert len(y) == 11 * ROWS * COLUMNS
    assert any("[time-1] counts time levels in the order" in line for line in notices)


def test_times_without_a_step_that_most_have_count_levels(tmp_path):
    days = np.array([0, 1, 3, 8, 14, 30, 100, 160])
    y, x, notices = lagged(daily_table(tmp_path / "f.csv", days), "x[time-1]")
    assert np.array_equal(y, days[1:])
    assert np.array_equal(x, days[:-1])
    assert any("its times have no regular step; set data.lag_step_days" in line for line in notices)


def test_a_time_that_two_files_have_names_both(tmp_path):
    for name, first in (("a", 0), ("b", 10), ("c", 18)):
        daily_table(tmp_path / f"{name}.csv", first + np.arange(10))
    files = f"[{', '.join(str(tmp_path / f'{name}.csv') for name in 'abc')}]"
    with pytest.raises(DataError, match=r"c.csv: has a time that .*b.csv also has, but \[time\+1\] needs"):
        lagged(files, "x[time+1]")
    with pytest.raises(ConfigError, match="two lags; give one"):
        lagged(files, "x[time-1, row-2]")


def test_the_command_leaves_out_what_has_no_day_before(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    daily_table(tmp_path / "daily.csv", some_days())
    names = ["variables.input_variables=['x[time-1]']", "variables.output_variables=[y]"]
    assert main(["data", "convert", "daily.csv", *names, "--output", "lags.npz"]) == 0
    with np.load("lags.npz") as found:
        assert len(found["inputs"]) == 92
        assert (found["targets"].reshape(-1) - found["inputs"].reshape(-1) == 1).all()
    assert (
        "daily.csv: [time-1] leaves out 3 of 96 times: there is no time 1 step of 1 day before them"
        in capsys.readouterr().err
    )


STATIONS = ["b", "a", "c"]


def station_rows(order: str) -> list[tuple[str, int, float, float]]:
    """Rows of three stations: name, day, latitude, longitude; of the second a day is missing."""
    rows = [(name, day, 10.0 * place, 5.0) for place, name in enumerate(STATIONS) for day in range(20)]
    rows.remove(("a", 7, 10.0, 5.0))
    by_day = sorted(rows, key=lambda row: row[1])
    shuffled = [rows[place] for place in np.random.default_rng(3).permutation(len(rows))]
    return {"by station": rows, "by day": by_day, "shuffled": shuffled}[order]


@pytest.mark.parametrize("order", ["by station", "by day", "shuffled"])
@pytest.mark.parametrize("told_by", ["station", "site_id", "places"])
def test_a_lag_of_a_table_of_stations_is_that_of_each_station(tmp_path, order, told_by):
    rows = station_rows(order)
    names = {name: number for number, name in enumerate(STATIONS)}
    values = [100.0 * names[name] + day for name, day, *_ in rows]
    when = np.datetime64("2000-01-01") + np.array([day for _, day, *_ in rows]).astype("timedelta64[D]")
    more = {"station": [row[0] for row in rows], "site_id": [names[row[0]] for row in rows]}.get(told_by)
    columns = {"date": when, **({} if more is None else {told_by: more}), "x": values, "y": values}
    if told_by == "places":
        columns |= {"lat": [row[2] for row in rows], "lon": [row[3] for row in rows]}
    pandas.DataFrame(columns).to_csv(tmp_path / "f.csv", index=False)
    y, x, notices = lagged(tmp_path / "f.csv", "x[time-1]")
    assert (y - x == 1).all()
    assert len(y) == len(rows) - 3 - 1
    assert any("lags of time are counted at each station, identified by" in line for line in notices)
    assert any("leaves out 1 of 59 times: there is no time 1 step of 1 day before them" in line for line in notices)


def test_a_lag_of_ragged_stations_is_that_of_each_station(tmp_path):
    rows = station_rows("by day")
    names = {name: number for number, name in enumerate(STATIONS)}
    values = np.array([100.0 * names[name] + day for name, day, *_ in rows])
    variables = {
        "time": (("obs",), np.array([float(row[1]) for row in rows])), "x": (("obs",), values), "y": (("obs",), values),
        "of": (("obs",), np.array([names[row[0]] for row in rows])), "number": (("station",), np.arange(3)),
    }  # fmt: skip
    attributes = {
        "of": {"instance_dimension": "station"},
        "number": {"cf_role": "timeseries_id"},
        "time": {"units": DAYS},
    }
    path = write_netcdf(tmp_path / "f.nc", variables, **attributes)
    y, x, _ = lagged(path, "x[time-1]")
    assert (y - x == 1).all()
    assert len(y) == len(rows) - 4


def test_places_that_change_from_row_to_row_are_no_stations(tmp_path):
    days = np.arange(30)
    columns = {"date": np.datetime64("2000-01-01") + days.astype("timedelta64[D]"), "lat": days / 10, "lon": days / 5}
    pandas.DataFrame({**columns, "x": days, "y": days}).to_csv(tmp_path / "ship.csv", index=False)
    y, x, notices = lagged(tmp_path / "ship.csv", "x[time-1]")
    assert (y - x == 1).all()
    assert len(y) == 29
    assert not any("each station" in line for line in notices)


def test_a_measured_gauge_is_no_station(tmp_path):
    days = np.arange(30)
    columns = {"date": np.datetime64("2000-01-01") + days.astype("timedelta64[D]"), "site": days + 0.5}
    pandas.DataFrame({**columns, "x": days, "y": days}).to_csv(tmp_path / "f.csv", index=False)
    assert len(lagged(tmp_path / "f.csv", "x[time-1]")[0]) == 29


@pytest.mark.parametrize("later", [0, 40])
def test_files_of_one_station_each_are_series_of_their_own(tmp_path, later):
    for number, name in enumerate("AB"):
        when = np.datetime64("2000-01-01") + (np.arange(20) + later * number).astype("timedelta64[D]")
        values = 100 * number + np.arange(20)
        frame = pandas.DataFrame({"date": when, "basin": "N", "station": name, "x": values, "y": values})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    y, x, _ = lagged(tmp_path / "?.csv", "x[time-1]")
    assert len(y) == 38
    assert (y - x == 1).all()


def test_a_buoy_that_drifts_is_one_series(tmp_path):
    days = np.arange(40)
    columns = {"date": np.datetime64("2000-01-01") + days.astype("timedelta64[D]"), "lat": days // 4, "lon": days // 4}
    pandas.DataFrame({**columns, "x": days, "y": days}).to_csv(tmp_path / "f.csv", index=False)
    assert len(lagged(tmp_path / "f.csv", "x[time-1]")[0]) == 39


@pytest.mark.parametrize("kind", ["numbers", "letters"])
def test_a_lag_of_trajectories_of_two_dimensions_is_that_of_each(tmp_path, kind):
    both = ("trajectory", "obs")
    times = 30.0 * np.arange(3)[:, None] + np.arange(5)
    values = 100.0 * np.arange(3)[:, None] + np.arange(5)
    names = np.array(["A", "B", "C"], "S1") if kind == "letters" else np.arange(3)
    variables = {"time": (both, times), "x": (both, values), "y": (both, values), "lat": (both, values / 10),
                 "lon": (both, values / 10), "who": (("trajectory",), names)}  # fmt: skip
    attributes = {"time": {"units": DAYS}, "who": {"cf_role": "trajectory_id"}, "lat": {"units": "degrees_north"},
                  "lon": {"units": "degrees_east"}}  # fmt: skip
    y, x, _ = lagged(write_netcdf(tmp_path / "f.nc", variables, **attributes), "x[time-1]")
    assert len(y) == 12
    assert (y - x == 1).all()


def test_the_column_of_stations_can_be_named(tmp_path):
    rows = station_rows("by day")
    when = np.datetime64("2000-01-01") + np.array([day for _, day, *_ in rows]).astype("timedelta64[D]")
    values = [100 * STATIONS.index(name) + day for name, day, *_ in rows]
    frame = pandas.DataFrame({"date": when, "Messstelle": [row[0] for row in rows], "x": values, "y": values})
    frame.to_csv(tmp_path / "f.csv", index=False)
    with pytest.raises(DataError, match=r"name the column of stations in data.coordinates=\{station: NAME\}"):
        lagged(tmp_path / "f.csv", "x[time-1]")
    y, x, _ = lagged(tmp_path / "f.csv", "x[time-1]", "data.coordinates={station: Messstelle}")
    assert len(y) == len(rows) - 4
    assert (y - x == 1).all()
