"""A lag is a step of time: over gaps, in tables and on grids, in any order of rows and files; `row` counts rows.

Values are the numbers of days or months, so that what a lag must give is known.
"""

from pathlib import Path

import numpy as np
import pytest
from field_files import COLUMNS, ROWS, config_of, read_all, write_netcdf

from mpitrain.cli.main import main
from mpitrain.data.describe.times import dates_of, numbers_of
from mpitrain.data.selection.lags import TimeStep, find_step, levels_at
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

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
    assert f"[time{lag:+d}] leaves out {missing} of 96 times, {abs(lag)} step" in line
    assert f"(day) {'before' if lag < 0 else 'after'} which there is none; [row{lag:+d}] takes" in line


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
    for lag, num_months in ((-1, 36 - 2), (-12, 12)):
        y, x, notices = lagged(files, f"x[time{lag}]", target_bytes=target_bytes)
        assert len(y) == num_months * ROWS * COLUMNS
        assert (x - y == lag).all()
        assert any(f"{abs(lag)} step" in line and "(month) before which" in line for line in notices)


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
    with pytest.raises(DataError, match=r"g.npz: a time is there more than once.*give each time once, or x\[row-1\]"):
        lagged(tmp_path / "g.npz", "x[time-1]")
    assert len(lagged(tmp_path / "g.npz", "x[row-1]")[0]) == 5


def test_without_times_a_lag_counts_levels(tmp_path):
    values = np.broadcast_to(np.arange(6.0)[:, None, None], (6, ROWS, COLUMNS))
    path = write_netcdf(tmp_path / "f.nc", {name: (("time", "nj", "ni"), values) for name in ("x", "y")})
    y, x, notices = lagged(path, "x[time-1]")
    assert (y - x == 1).all()
    assert len(y) == 5 * ROWS * COLUMNS
    assert not any("leaves out" in line for line in notices)


@pytest.mark.parametrize(
    ("times", "step", "words"),
    [
        ([0, 1, 2, 5, 6], TimeStep(1.0), "day"),
        ([0.0, 0.25, 0.5, 1.0], TimeStep(0.25), "6 hours"),
        ([3, 0, 2, 1], TimeStep(1.0), "day"),
        ([0, 31, 60, 91], TimeStep(31.0, 1), "month"),
        ([0, 366, 731, 1096], TimeStep(365.0, 12), "year"),
        ([0, 30, 60, 90, 120], TimeStep(30.0), "30 days"),
        (np.arange(4) / 86400, TimeStep(1 / 86400), "second"),
    ],
)
def test_the_step_of_times_is_the_most_frequent(times, step, words):
    first = 10957.0  # 2000-01-01
    found = find_step(first + np.asarray(times, dtype=float), "standard")
    assert found is not None
    assert (found.months, found.words) == (step.months, words)
    assert found.days == pytest.approx(step.days, rel=1e-6)


def test_a_time_that_is_a_little_late_is_that_step():
    times = 10957.0 + np.array([0, 1.01, 1.99, 3, 4.3, 5])
    assert levels_at(times, TimeStep(1.0), -1, "standard").tolist() == [-1, 0, 1, 2, -1, -1]
    assert find_step(times[:1], "standard") is None


def test_the_command_leaves_out_what_has_no_day_before(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    daily_table(tmp_path / "daily.csv", some_days())
    names = ["variables.input_variables=['x[time-1]']", "variables.output_variables=[y]"]
    assert main(["data", "convert", "daily.csv", *names, "--output", "lags.npz"]) == 0
    with np.load("lags.npz") as found:
        assert len(found["inputs"]) == 92
        assert (found["targets"].reshape(-1) - found["inputs"].reshape(-1) == 1).all()
    assert "daily.csv: [time-1] leaves out 3 of 96 times, 1 step (day) before which" in capsys.readouterr().err
