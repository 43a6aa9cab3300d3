"""Held-out samples by blocks of time, by regions, and from files of their own."""

import json
import re
import shutil

import netCDF4
import numpy as np
import pytest
from conftest import launch
from field_files import COLUMNS, ROWS, TIMES, config_of, ramp, read_all, write_netcdf, write_xy

from mpitrain.data.dataset.split import plan_split, resolved_split
from mpitrain.data.dataset.split_rule import VALIDATION, split_notices
from mpitrain.data.describe.times import ranks_of_times
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError, DataError


def held_out(path, *settings):
    """Which of a source's samples are held out, and the rule's words."""
    config = config_of(path, *settings)
    source = open_source(selection_of(config))
    samples, rule = read_all(source), plan_split(config.split_data, source)
    halves = [samples.take(np.arange(0, 1)), samples.take(np.arange(1, len(samples)))]
    together = rule.roles(samples.grid_index, 0) == VALIDATION
    parts = [(rule.roles(one.grid_index, first) == VALIDATION) for first, one in enumerate(halves)]
    assert np.array_equal(np.concatenate(parts), together)
    return samples.grid_index, together, rule.description


def long_file(path, num_times=40):
    shape = (num_times, ROWS, COLUMNS)
    return write_xy(path, ramp(shape=shape), ramp(shape=shape) / 10_000)


def test_whole_blocks_of_time_are_held_out(tmp_path):
    path = long_file(tmp_path / "f.nc")
    index, flags, words = held_out(path, "data.split=time", "data.split_blocks=8", "data.validation_split=0.25")
    levels = index // (ROWS * COLUMNS)
    assert words == "2 of 8 blocks of time"
    assert flags.sum() == 2 * 5 * ROWS * COLUMNS
    for block in range(8):
        assert len(set(flags[levels // 5 == block])) == 1


def stations(days, reverse=False):
    """A table of 4 stations, one after the other, each with the same days; the number of each row's day."""
    when = np.tile(np.datetime64("2001-01-01") + np.arange(days), 4)[:: -1 if reverse else 1]
    return {"when": when, "x": np.arange(4.0 * days), "y": np.arange(4.0 * days)}


@pytest.mark.parametrize("reverse", [False, True])
def test_blocks_of_time_are_of_times_and_not_of_rows(tmp_path, reverse):
    columns = stations(40, reverse)
    np.savez(tmp_path / "f.npz", **columns)
    for part in ("data.validation_split=0.25", "data.folds=4"):
        _, flags, words = held_out(tmp_path / "f.npz", "data.split=time", "data.split_blocks=8", part)
        assert words == "2 of 8 blocks of time (2001-01-01 to 2001-01-05, 2001-01-31 to 2001-02-04)"
        of_day = {day: set(flags[columns["when"] == day].tolist()) for day in np.unique(columns["when"])}
        assert all(len(found) == 1 for found in of_day.values())
        assert sum(found == {True} for found in of_day.values()) == 10
    before = held_out(tmp_path / "f.npz", "data.split=time", "data.split_blocks=8", "data.rules=1")[1].reshape(8, 20)
    assert (before == before[:, :1]).all()
    assert before.any()


def test_rows_without_a_time_are_trained_on(tmp_path):
    columns = stations(40)
    columns["when"][5:8] = np.datetime64("NaT")
    np.savez(tmp_path / "f.npz", **columns)
    for fold in range(2):
        _, flags, words = held_out(tmp_path / "f.npz", "data.split=time", "data.folds=2", f"data.fold={fold}")
        assert re.fullmatch(r"10 of 20 blocks of time \(2001-.* and [23] more\) \(3 without .* trained on\)", words)
        assert not flags[5:8].any()


def test_times_of_files_in_another_order_and_other_units_are_one_line_of_times(tmp_path):
    """Ten days in three files: the last ones first, hours since another date, in letters of the other case."""
    days, hours = "days since 2000-01-01", "HOURS SINCE 1999-12-31"
    parts = {"c": (np.arange(6.0, 10), days), "a": (np.arange(3.0) * 24 + 24, hours), "b": (np.arange(2.0, 7), days)}
    levels = []
    for name, (times, units) in parts.items():
        shape = (len(times), ROWS, COLUMNS)
        values = {one: (("when", "j", "i"), ramp(shape=shape)) for one in ("x", "y")}
        write_netcdf(tmp_path / f"{name}.nc", {"when": (("when",), times)} | values, "", None, when={"units": units})
        levels += [round(one) if units.startswith("days") else round(one / 24) - 1 for one in times]
    files = json.dumps([str(tmp_path / f"{name}.nc") for name in parts])
    index, flags, words = held_out(tmp_path, f"data.data_path={files}", "data.split=time", "data.split_blocks=5")
    assert words == "1 of 5 blocks of time (2000-01-01 to 2000-01-02)"
    of_samples = np.asarray(levels)[index // (ROWS * COLUMNS)]
    held = set(of_samples[flags].tolist())
    assert len(held) == 2
    assert max(held) - min(held) == 1
    assert not held & set(of_samples[~flags].tolist())


@pytest.mark.parametrize(
    "others", [("months since 2000-01-01", "days since 2000-07-01"), ("days since x", "hours since x")]
)
def test_times_that_cannot_be_compared_are_cut_in_the_order_of_the_files(tmp_path, others):
    for number, units in enumerate(others):
        values = {one: (("time", "nj", "ni"), ramp()) for one in ("x", "y")}
        times = {"time": (("time",), np.arange(TIMES) + 0.5)}
        write_netcdf(tmp_path / f"{number}.nc", values | times, "", None, time={"units": units})
    files = json.dumps([str(tmp_path / f"{number}.nc") for number in range(2)])
    index, flags, words = held_out(tmp_path, f"data.data_path={files}", "data.split=time", "data.split_blocks=3")
    assert words == "1 of 3 blocks of time"
    assert len(set(index[flags] // (ROWS * COLUMNS))) == 2


def test_of_few_distinct_times_the_error_says_so(tmp_path):
    when, values = np.repeat(np.datetime64("2001-01-01") + np.arange(4), 5), np.arange(20.0)
    np.savez(tmp_path / "f.npz", when=when, x=values, y=values)
    with pytest.raises(ConfigError, match=r"5 blocks are requested, at most 4 blocks of distinct times are possible"):
        held_out(tmp_path / "f.npz", "data.split=time", "data.split_blocks=5")
    np.savez(tmp_path / "g.npz", when=when[np.zeros(20, dtype=int)], x=values, y=values)
    with pytest.raises(ConfigError, match=r"all samples are at one time, which cannot be divided"):
        held_out(tmp_path / "g.npz", "data.split=time")
    np.savez(tmp_path / "h.npz", when=np.full(20, np.datetime64("NaT"), "M8[s]"), x=values, y=values)
    assert held_out(tmp_path / "h.npz", "data.split=time")[2] == "2 of 20 blocks of time"


def test_bursts_far_apart_keep_their_times():
    times = np.concatenate([np.arange(500) * 0.1, 9.5e8 + np.arange(500) * 0.1])
    assert np.array_equal(ranks_of_times(times), np.arange(1000))


def test_folds_of_blocks_meet(tmp_path):
    path = long_file(tmp_path / "f.nc")
    blocks = ("data.split=time", "data.split_blocks=10", "data.folds=5")
    found = [held_out(path, *blocks, f"data.fold={fold}")[1] for fold in range(5)]
    assert (np.sum(found, axis=0) == 1).all()


def test_whole_regions_are_held_out_at_all_times(tmp_path):
    path = long_file(tmp_path / "f.nc")
    _, flags, words = held_out(path, "data.split=region", "data.split_blocks=4")
    assert words == "1 of 4 blocks of the grid"
    inside = flags.reshape(40, ROWS, COLUMNS)
    assert (inside == inside[0]).all()
    rows, columns = np.nonzero(inside[0])
    assert (len(set(rows)), len(rows)) == (2, len(set(rows)) * len(set(columns)))


def test_regions_of_scattered_cells_are_by_their_places(tmp_path):
    places, shape = np.random.default_rng(0), (3, 500)
    lon, lat = places.uniform(0, 360, 500), places.uniform(-90, 90, 500)
    values = {name: (("time", "ncells"), ramp(shape=shape)) for name in ("x", "y")}
    variables = values | {"lon": (("ncells",), lon), "lat": (("ncells",), lat)}
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, lon={"units": "degrees_east"})
    _, flags, words = held_out(path, "data.split=region", "data.split_blocks=16", "data.validation_split=0.05")
    assert words == "1 of 16 blocks of the grid"
    chosen = flags.reshape(shape)[0]
    assert chosen.sum() > 5
    assert np.ptp(lon[chosen]) < 91
    west = variables | {"lon": (("ncells",), (lon + 180) % 360 - 180)}
    other = write_netcdf(tmp_path / "west.nc", west, "", None, lon={"units": "degrees_east"})
    settings = "data.split=region", "data.split_blocks=16", "data.validation_split=0.05"
    assert np.array_equal(held_out(other, *settings)[1], flags)
    bare = write_netcdf(tmp_path / "bare.nc", values)
    with pytest.raises(ConfigError, match=r"data.split=region: .* no longitude and latitude"):
        held_out(bare, "data.split=region")


def test_regions_of_dated_reports_are_those_of_undated_ones(tmp_path):
    random = np.random.default_rng(0)
    columns = {"x": random.normal(size=500), "y": random.normal(size=500)}
    columns |= {"lat": random.uniform(-90, 90, 500), "lon": random.uniform(0, 360, 500)}
    days = np.datetime64("2001-01-01") + np.arange(500)
    np.savez(tmp_path / "undated.npz", **columns)
    np.savez(tmp_path / "dated.npz", **columns, when=days)
    region = "data.split=region", "data.split_blocks=16", "data.validation_split=0.1"
    undated, dated = (held_out(tmp_path / f"{name}.npz", *region) for name in ("undated", "dated"))
    assert undated[2] == dated[2] == "2 of 16 blocks of places"
    assert np.array_equal(undated[1], dated[1])
    np.savez(tmp_path / "nowhere.npz", x=columns["x"], y=columns["y"], when=days)
    with pytest.raises(ConfigError, match=r"data.split=region: samples have no latitude and longitude"):
        held_out(tmp_path / "nowhere.npz", "data.split=region")


def test_of_few_fields_one_is_held_out(tmp_path):
    path = write_xy(tmp_path / "f.nc")
    for seed in range(20):
        _, flags, _ = held_out(path, "data.samples=fields", f"seed={seed}")
        assert 1 <= flags.sum() < TIMES
    with pytest.raises(ConfigError, match=r"data.split=time: 4 blocks are requested, at most 3 blocks are possible"):
        held_out(path, "data.split=time", "data.split_blocks=4")


def test_files_of_their_own_are_held_out_and_lags_stay_inside_them(tmp_path):
    first, second = long_file(tmp_path / "a.nc", 4), long_file(tmp_path / "b.nc", 3)
    index, flags, _ = held_out(first, f"data.validation_path={second}")
    assert np.array_equal(flags, index >= 4 * ROWS * COLUMNS)
    lagged = "variables.input_variables=['x[time-1]']"
    index, flags, _ = held_out(first, f"data.validation_path={second}", lagged)
    assert sorted(set(index // (ROWS * COLUMNS))) == [1, 2, 3, 5, 6]
    with pytest.raises(DataError, match=r"a.nc: is in data.validation_path and in data.data_path; remove it"):
        held_out(first, f"data.validation_path={first}")


def test_tables_of_samples_are_held_out_by_file(tmp_path):
    for name, count in (("a", 10), ("b", 6)):
        np.savez(tmp_path / f"{name}.npz", inputs=np.ones((count, 1)), targets=np.arange(1.0 * count))
    index, flags, _ = held_out(tmp_path / "a.npz", f"data.validation_path={tmp_path / 'b.npz'}")
    assert index.tolist() == list(range(16))
    assert flags.tolist() == [False] * 10 + [True] * 6


def test_lags_of_files_held_out_may_be_of_earlier_times(tmp_path):
    for name, first in (("trained", 10.0), ("earlier", 0.0)):
        values = {one: (("time", "nj", "ni"), ramp()) for one in ("x", "y")}
        times = {"time": (("time",), first + np.arange(TIMES))}
        write_netcdf(tmp_path / f"{name}.nc", values | times, "", None, time={"units": "days since 2000-01-01"})
    validation = f"data.validation_path={tmp_path / 'earlier.nc'}"
    index, flags, _ = held_out(tmp_path / "trained.nc", validation, "variables.input_variables=['x[time-1]']")
    assert np.array_equal(flags, index >= TIMES * ROWS * COLUMNS)
    assert flags.sum() == (TIMES - 1) * ROWS * COLUMNS


@pytest.mark.lab
def test_a_run_says_what_it_holds_out(tmp_path):
    path = long_file(tmp_path / "f.nc")
    names = ("variables.input_variables=[x]", "variables.output_variables=[y]", "training.epochs=1")
    for streaming in ("true", "false"):
        out = tmp_path / streaming
        done = launch(["-m", "mpitrain", "train", "--data", str(path), "--output", str(out), *names, "data.split=time",
                       f"data.streaming={streaming}"], 2 if streaming == "true" else None)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "note: held out for validation: 2 of 20 blocks of time, 80 samples" in done.stderr
        assert "720 for training, 80 for validation" in done.stdout
    metrics = [json.loads((tmp_path / one / "metrics.jsonl").read_text().splitlines()[-1]) for one in ("true", "false")]
    assert metrics[0]["validation_loss"] > 0


def test_one_time_level_cannot_be_cut(tmp_path):
    path = long_file(tmp_path / "f.nc", num_times=1)
    with pytest.raises(ConfigError, match=r"data\.split=time: there is only one time, which cannot be divided"):
        held_out(path, "data.split=time")


def test_single_times_of_a_series_that_are_held_out_are_told(tmp_path):
    """Random times lie between those trained on; stretches do not, nor do single reports from several places."""
    times = {"when": {"units": "days since 2000-01-01"}}
    for name, more in (("series", {}), ("reports", {one: (("n",), np.arange(40.0)) for one in ("lat", "lon")})):
        variables = {one: (("n",), ramp(first, (40,))) for one, first in (("x", 0), ("y", 100))}
        path = write_netcdf(tmp_path / f"{name}.nc", variables | more | {"when": (("n",), np.arange(40.0))}, "n", None,
                            **times, lat={"units": "degrees_north"}, lon={"units": "degrees_east"})  # fmt: skip
        for split in ("random", "time"):
            config = config_of(path, "domain.mask_mode=null", f"data.split={split}")
            (told,) = tuple(
                split_notices(plan_split(config.split_data, open_source(selection_of(config))), 4, 0, 40)
            ) or ("",)
            expected = {"random": "single times of a series, between times", "time": "2 of 20 blocks of time"}[split]
            assert (expected in told) == (name == "series" or split == "time")
    # Rows of a table with dates are a series where these go on, and not where several reports have one date.
    for name, dates in (("series", range(40)), ("reports", [day // 2 for day in range(40)])):
        rows = "".join(f"{np.datetime64('2000-01-01') + day},{day},{day % 7}\n" for day in dates)
        (tmp_path / f"{name}.csv").write_text(f"date,x,y\n{rows}")
        config = config_of(tmp_path / f"{name}.csv", "domain.mask_mode=null", "data.split=random")
        rule = plan_split(config.split_data, open_source(selection_of(config)))
        assert (tuple(split_notices(rule, 4, 0, 40)) != ()) == (name == "series")
    # Times of two files that do not fit together, which nothing else needs, are no reason to end.
    for name, units in (("a.nc", "months since 2001-01-01"), ("b.nc", "days since 2001-01-01")):
        shutil.copy(tmp_path / "series.nc", tmp_path / name)
        with netCDF4.Dataset(str(tmp_path / name), "a") as file:
            file["when"].units = units
    config = config_of(f"[{tmp_path}/a.nc, {tmp_path}/b.nc]", "domain.mask_mode=null", "data.split=random")
    assert tuple(split_notices(plan_split(config.split_data, open_source(selection_of(config))), 4, 0, 40)) == ()


@pytest.mark.parametrize(
    ("num_days", "settings", "expected"),
    [(20, (), "time"), (19, (), "random"), (40, ("data.folds=20",), "time"), (40, ("data.folds=21",), "random"),
     (40, ("data.split=random",), "random"), (40, ("data.rules=1",), "random"),
     (40, ("data.validation_split=0",), "auto"), (40, ("data.coordinates={time: depth}",), "random")],
)  # fmt: skip
def test_auto_is_by_time_from_twenty_times_on(tmp_path, num_days, settings, expected):
    columns = stations(num_days)
    path = tmp_path / "f.nc"
    when = (("n",), (columns["when"] - np.datetime64("1970-01-01")).astype(float))
    variables = {name: (("n",), columns[name]) for name in ("x", "y")} | {"when": when, "depth": when}
    write_netcdf(path, variables, "", None, when={"units": "days since 1970-01-01"}, depth={"units": "m"})
    config = config_of(path, "domain.mask_mode=null", *settings)
    assert resolved_split(config.split_data, open_source(selection_of(config))) == expected
    if expected == "time":
        _, flags, words = held_out(path, *settings)
        assert flags.sum() == 4 * {20: 2, 40: 2}[num_days]
        assert "blocks of time (2001-0" in words


@pytest.mark.parametrize(
    ("settings", "expected"),
    [(("variables.input_variables=['x[time-1]']",), "time"), (("variables.input_variables=['x[time-15]']",), "random"),
     (("domain.mask=time >= 2001-01-02",), "time"), (("domain.mask=time >= 2001-01-20",), "random"),
     (("domain.mask=x > -9 and time >= 2001-01-20",), "random"), (("domain.mask=x > 3 or month == 1",), "time"),
     (("domain.mask=month == 1",), "random"), (("data.validation_split=0.02",), "random")],
)  # fmt: skip
def test_auto_counts_the_times_that_may_have_samples(tmp_path, settings, expected):
    np.savez(tmp_path / "f.npz", **{name: one[:40] for name, one in stations(40).items()})
    config = config_of(tmp_path / "f.npz", *settings)
    assert resolved_split(config.split_data, open_source(selection_of(config))) == expected


def test_what_auto_holds_out_is_told_once_and_to_the_second(tmp_path):
    when = np.datetime64("2001-01-01T00:00:00") + np.arange(40) * np.timedelta64(7, "s")
    np.savez(tmp_path / "f.npz", when=when, x=np.arange(40.0), y=np.arange(40.0))
    for count, more in ((4, "; data.split=random draws samples individually"), (20, "or data.split=random")):
        config = config_of(tmp_path / "f.npz")
        rule = plan_split(config.split_data, open_source(selection_of(config)))
        (told,) = tuple(split_notices(rule, count, 0, 40))
        assert "(2001-01-01 00:0" in told
        assert re.search(r"00:0\d:\d\d to 2001-01-01 00:0\d:\d\d", told)
        assert told.endswith(more)
        assert told.count("data.split=random") == 1
    (told,) = tuple(split_notices(rule, 0, 0, 40))
    assert told.startswith("nothing is held out: no sample lies in 2 of 20 blocks of time (2001-01-01 00:0")


def test_a_history_of_cice_is_held_out_by_chance(tmp_path):
    days, places = np.arange(24.0), np.linspace(60, 80, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    variables = {name: (("time", "nj", "ni"), ramp(shape=(24, ROWS, COLUMNS))) for name in ("x", "y")}
    variables |= {"time": (("time",), days)} | {name: (("nj", "ni"), places) for name in ("TLAT", "TLON")}
    times = {"time": {"units": "days since 2000-01-01"}}
    for grid, expected in (("cice", "random"), ("other", "time")):
        own = {name.replace("TLAT", "lat").replace("TLON", "lon") if grid == "other" else name: one
               for name, one in variables.items()}  # fmt: skip
        config = config_of(write_netcdf(tmp_path / f"{grid}.nc", own, "time", None, **times))
        assert resolved_split(config.split_data, open_source(selection_of(config))) == expected


@pytest.mark.parametrize("kind", ["f.csv", "f.npz"])
def test_rows_without_times_are_no_series_and_may_be_cut_in_their_order(tmp_path, kind):
    columns = {"x": ramp(0, (40,)), "y": ramp(100, (40,))}
    if kind == "f.csv":
        rows = "".join(f"{x},{y}\n" for x, y in zip(*columns.values(), strict=True))
        (tmp_path / kind).write_text(f"x,y\n{rows}")
    else:
        np.savez(tmp_path / kind, **columns)
    config = config_of(tmp_path / kind)
    assert tuple(split_notices(plan_split(config.split_data, open_source(selection_of(config))), 4, 0, 40)) == ()
    index, flags, words = held_out(tmp_path / kind, "data.split=time", "data.split_blocks=4")
    assert words == "1 of 4 blocks of rows, whose times are not known"
    assert np.ptp(index[flags]) == flags.sum() - 1 == 9


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_tables_of_any_length_follow_one_another(tmp_path, shape):
    """Samples are those of one table of all rows, also where columns have a second dimension of 1."""
    x = np.arange(100.0)
    for name, part in (("a", x[:70]), ("b", x[70:]), ("all", x)):
        np.savez(tmp_path / f"{name}.npz", x=part, y=part.reshape(shape))
    whole, parts = (
        read_all(open_source(selection_of(config_of(files)))) for files in
        (tmp_path / "all.npz", f"[{tmp_path}/a.npz, {tmp_path}/b.npz]")
    )  # fmt: skip
    assert np.array_equal(whole.inputs, parts.inputs)
    assert np.array_equal(whole.grid_index, parts.grid_index)
    index, flags, words = held_out(tmp_path / "a.npz", f"data.validation_path={tmp_path}/b.npz")
    assert words == "the files of data.validation_path"
    assert np.array_equal(index[flags], np.arange(70, 100))


def test_tables_have_scalars_of_their_own_and_arrays_of_fields_are_fields(tmp_path):
    for name, scalar in (("a", 1.0), ("b", 2.0)):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(5.0), y=np.arange(5.0), c=scalar)
    files = f"[{tmp_path}/a.npz, {tmp_path}/b.npz]"
    samples = read_all(open_source(selection_of(config_of(files, "variables.input_variables=[x, c, x * c]"))))
    assert np.array_equal(samples.inputs, [[x, c, x * c] for c in (1, 2) for x in range(5)])
    selected = read_all(open_source(selection_of(config_of(files, "domain.mask=c > 1"))))
    assert np.array_equal(selected.grid_index, np.arange(5, 10))
    fields = read_all(open_source(selection_of(config_of(files, "data.samples=fields"))))
    assert fields.inputs.shape == (2, 1, 5, 1)


def test_regions_of_rows_are_those_where_the_rule_selects_any(tmp_path):
    """As on a grid: blocks are cut, and counted, among the places that a range of latitudes selects."""
    random = np.random.default_rng(0)
    columns = {name: random.normal(size=500) for name in ("x", "y")}
    columns |= {"lat": random.uniform(-90, 90, 500), "lon": random.uniform(0, 360, 500)}
    np.savez(tmp_path / "f.npz", **columns)
    settings = "data.split=region", "domain.latitude_range=[0, 30]", "data.validation_split=0.25"
    index, flags, _ = held_out(tmp_path / "f.npz", *settings)
    rows = np.flatnonzero((columns["lat"] >= 0) & (columns["lat"] <= 30))
    assert np.array_equal(index, rows)
    assert 0.15 * len(rows) < flags.sum() < 0.35 * len(rows)
    assert np.array_equal(held_out(tmp_path / "f.npz", *settings, "data.rules=1")[1], flags)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("grid", "single points, between others"), ("stations", "single reports of places"), ("reports", None),
     ("places alone", None)],
)  # fmt: skip
def test_what_chance_holds_out_beside_its_like_is_told(tmp_path, kind, expected):
    places = {name: (("n",), np.arange(40.0) // (10 if kind == "stations" else 1)) for name in ("lat", "lon")}
    variables = {
        "grid": {name: (("time", "lat", "lon"), ramp(0, (4, 2, 5))) for name in ("x", "y")},
        "places alone": {name: (("lat", "lon"), ramp(0, (8, 5))) for name in ("x", "y")},
    }.get(kind, {name: (("n",), ramp(0, (40,))) for name in ("x", "y")} | places)
    units = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    own = {name: one for name, one in units.items() if name in variables}
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, **own)
    for meant in ((), ("data.split=random",)):
        config = config_of(path, *meant)
        source = open_source(selection_of(config))
        told = tuple(split_notices(plan_split(config.split_data, source), 4, 0, 40))
        assert len(told) == int(expected is not None and not meant)
        assert all(expected in line for line in told)
