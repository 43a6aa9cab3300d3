"""Which numbers are a sample: levels, further dimensions, columns, derived variables, lags and decoded time."""

import pickle

import numpy as np
import pytest
from field_files import COLUMNS, ROWS, TIMES, config_of, ramp, read_all, write_netcdf

from mpitrain.data.describe.times import dates_of, numbers_of
from mpitrain.data.selection.expressions.clock import clock_values
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError, DataError

DEPTHS = np.array([0.5, 10.25, 50.0, 120.0], dtype="f4")
DEEP = ("time", "deptht", "y", "x")


def levels_file(path, first=0.0, epoch="days since 2001-01-01", start=0, depths=DEPTHS, **attributes):
    """A NEMO-like file: t (time, deptht, y, x), two fields of the surface, and decoded times."""
    shape = (TIMES, len(depths), ROWS, COLUMNS)
    variables = {
        "time": (("time",), start + np.arange(TIMES, dtype="f8")),
        "deptht": (("deptht",), depths),
        "t": (DEEP, ramp(first, shape)),
        "u": (("time", "y", "x"), ramp(first) % 7),
        "v": (("time", "y", "x"), ramp(first) % 5),
    }
    units = {"time": {"units": epoch}, "deptht": {"units": "m", "standard_name": "depth"}}
    return write_netcdf(path, variables, "", None, **units, **attributes)


def sampled(path, inputs, *settings, target="v", target_bytes=2**20):
    """The names and the samples of a source with these inputs."""
    given = [f"variables.input_variables={inputs}", f"variables.output_variables=[{target}]", *settings]
    source = pickle.loads(pickle.dumps(open_source(selection_of(config_of(path, *given)), target_bytes)))
    return source.input_names, read_all(source)


@pytest.mark.parametrize(
    ("inputs", "names", "levels"),
    [
        ("['t[deptht=0.5]']", ["t[deptht=0.5]"], [0]),
        ("['t[depth=50]']", ["t[depth=50]"], [2]),
        ("['t[1]']", ["t[1]"], [1]),
        ("['t[deptht=0..60]']", ["t[deptht=0.5]", "t[deptht=10.25]", "t[deptht=50]"], [0, 1, 2]),
        ("['t[deptht=10.25..50]']", ["t[deptht=10.25]", "t[deptht=50]"], [1, 2]),
        ("['t[depth=1:3]']", ["t[deptht=10.25]", "t[deptht=50]"], [1, 2]),
        ("['t[depth=:]']", [f"t[deptht={depth:g}]" for depth in DEPTHS], [0, 1, 2, 3]),
        ("['t[:]', 't[3]']", [*(f"t[deptht={depth:g}]" for depth in DEPTHS), "t[3]"], [0, 1, 2, 3, 3]),
    ],
)
@pytest.mark.parametrize("target_bytes", [100, 2**20])
def test_levels_are_taken_by_value_by_position_or_all(tmp_path, inputs, names, levels, target_bytes):
    path = levels_file(tmp_path / "f.nc")
    found, samples = sampled(path, inputs, target_bytes=target_bytes)
    assert list(found) == names
    expected = ramp(0, (TIMES, 4, ROWS, COLUMNS))[:, levels].transpose(0, 2, 3, 1).reshape(-1, len(levels))
    assert np.array_equal(samples.inputs, expected)


def test_levels_are_channels_of_fields(tmp_path):
    path = levels_file(tmp_path / "f.nc")
    _, samples = sampled(path, "['t[deptht=:]', u]", "data.samples=fields")
    assert samples.inputs.shape == (TIMES, 5, ROWS, COLUMNS)
    assert np.array_equal(samples.inputs[:, :4], ramp(0, (TIMES, 4, ROWS, COLUMNS)))


def test_columns_are_samples_with_vectors_in_and_out(tmp_path):
    profiles = ramp(0, (30, 6))
    path = write_netcdf(
        tmp_path / "f.nc", {"t": (("profile", "level"), profiles), "q": (("profile", "level"), 2 * profiles)}
    )
    names, samples = sampled(path, "['t[level=:]']", target="'q[level=1:4]'")
    assert names[0] == "t[level=0]"
    assert np.array_equal(samples.inputs, profiles)
    assert np.array_equal(samples.targets, 2 * profiles[:, 1:4])


def test_further_dimensions_without_names(tmp_path):
    np.savez(tmp_path / "f.npz", features=ramp(0, (50, 3)), labels=ramp(0, (50, 1))[:, 0])
    names, samples = sampled(tmp_path / "f.npz", "['features[:,0]', 'features[:,1:3]']", target="labels")
    assert names == ("features[:,0]", "features[:, 1]", "features[:, 2]")
    assert np.array_equal(samples.inputs, ramp(0, (50, 3)))


def test_derived_variables(tmp_path):
    path = levels_file(tmp_path / "f.nc")
    names, samples = sampled(path, "['sqrt(u**2 + v**2)', 'hypot(u, v)', 't[deptht=:] - t[0]', 'max(u, 3)', 'log(u)']")
    assert names[2] == "t[deptht=0.5] - t[0]"
    assert len(names) == 8
    u, v, t = (ramp() % 7).reshape(-1), (ramp() % 5).reshape(-1), ramp(0, (TIMES, 4, ROWS, COLUMNS))
    assert np.array_equal(samples.inputs[:, 0], np.sqrt(u.astype("f8") ** 2 + v.astype("f8") ** 2).astype("f4"))
    assert np.allclose(samples.inputs[:, 1], samples.inputs[:, 0], rtol=1e-6)
    assert np.array_equal(samples.inputs[:, 3], (t[:, 1] - t[:, 0]).reshape(-1))
    assert np.array_equal(samples.inputs[:, 6], np.maximum(u, 3))
    assert not np.isfinite(samples.inputs[u == 0, 7]).any()  # a logarithm of 0 is no measurement


def test_lags_reach_into_the_file_before_and_nowhere_else(tmp_path):
    files = [levels_file(tmp_path / f"f{n}.nc", 60 * n, start=3 * n) for n in range(3)]
    listed = f"[{', '.join(map(str, files))}]"
    everything = np.concatenate([ramp(60 * n) % 7 for n in range(3)])
    for target_bytes in (100, 2**20):
        names, samples = sampled(listed, "[u, 'u[time-1]', 'u[time-4] * 2', 'u[time+1]']", target_bytes=target_bytes)
        assert names[1:] == ("u[time-1]", "u[time-4] * 2", "u[time+1]")
        assert len(samples) == (9 - 4 - 1) * ROWS * COLUMNS
        for column, (lag, factor) in enumerate([(0, 1), (-1, 1), (-4, 2), (1, 1)]):
            expected = everything[4 + lag : 8 + lag].reshape(-1) * factor
            assert np.array_equal(samples.inputs[:, column], expected)
    names, fields = sampled(listed, "['t[deptht=50, time-1]']", "data.samples=fields")
    assert np.isfinite(fields.targets[1:]).all()
    assert np.isnan(fields.targets[0]).all()


def test_time_is_decoded_across_epochs(tmp_path):
    # The same instants in three units: 2001-02-01 to 2001-02-09.
    epochs = [("days since 2001-02-01", 0.0), ("days since 2001-01-01", 34.0), ("days since 1970-01-01", 11360.0)]
    files = [levels_file(tmp_path / f"f{n}.nc", 0, *one) for n, one in enumerate(epochs)]
    listed = f"[{', '.join(map(str, files))}]"
    names, samples = sampled(listed, "[time, day_of_year, hour_of_day, year]", "domain.mask=time >= 2001-02-03")
    points = ROWS * COLUMNS
    assert names == ("time", "day_of_year", "hour_of_day", "year")
    assert samples.inputs[::points].tolist() == [
        [11356.0 + day, 34.0 + day, 0.0, 2001.0] for day in (0, 1, 2, 3, 4, 5, 6)
    ]
    _, hours = sampled(listed, "[hour_of_day]", "domain.mask=time < 2001-02-01 12:00")
    assert len(hours) == points


BAD = [
    ("[t]", (), DataError, r"deptht of size 4 is neither time nor rows nor columns \(stand.*t\[deptht=0\].*=:\]"),
    ("['t[deptht=7]']", (), DataError, r"no level deptht=7: the values are 0.5, 10.25, 50, 120; give one"),
    ("['t[4]']", (), DataError, r"has 4 positions along deptht, 0 to 3: \[4\] selects none of them"),
    ("['t[z=0]']", (), DataError, r"has the dimensions \(time=3, deptht=4, y=4, x=5\): none is called 'z'"),
    ("['t[deptht=a]']", (), ConfigError, r"variables.*'deptht=a' is not a level or lag; allowed are \[z=0\]"),
    ("['sqrt(u']", (), ConfigError, r"variables.input_variables: column \d+: '\(' was never closed"),
    ("['u > 1']", (), ConfigError, r"variables.input_variables: is a condition, not a number"),
    ("['w - u']", (), DataError, r"no variable 'w'; this one has .*; name those to use in variables.input_variables"),
    ("['t[:] + t[0:2]']", (), ConfigError,
     r"t\[:\] has 4 levels and t\[0:2\] has 2 levels; select the same number of levels of each"),
    ("[u]", ("domain.mask='t[:] > 0'",), DataError, r"'t\[:\]' selects several levels"),
    ("[u]", ("domain.mask=time > 2001-02-30",), ConfigError, r"2001-02-30 is not a date of the calendar 'standard'"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "settings", "kind", "words"), BAD)
def test_what_cannot_be_is_one_line(tmp_path, inputs, settings, kind, words):
    path = levels_file(tmp_path / "f.nc")
    with pytest.raises(kind, match=words) as caught:
        sampled(path, inputs, *settings)
    assert "\n" not in str(caught.value)


def test_a_level_that_one_file_lacks_and_times_that_cannot_be(tmp_path):
    first, second = levels_file(tmp_path / "a.nc"), levels_file(tmp_path / "b.nc", depths=DEPTHS[:2])
    with pytest.raises(DataError, match=r"b.nc: no level deptht=120: the values are 0.5, 10.25; give"):
        sampled(f"[{first}, {second}]", "['t[deptht=120]']")
    assert len(sampled(f"[{first}, {second}]", "['u[time-1]']")[1]) == (TIMES - 1) * ROWS * COLUMNS  # the same levels
    other = levels_file(tmp_path / "d.nc", 60)
    with pytest.raises(DataError, match=r"d.nc: has a time that .*a.nc also has, but"):
        sampled(f"[{first}, {other}]", "['u[time-1]']")
    bare = write_netcdf(tmp_path / "c.nc", {"u": (("time", "y", "x"), ramp()), "v": (("time", "y", "x"), ramp())})
    with pytest.raises(DataError, match=r"c.nc: its time levels have no time \(a coordinate variable with units"):
        sampled(bare, "[day_of_year]")


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [([31, 59, 90], [16.5, 46, 75.5]), ([0, 31, 59], [16.5, 46, 75.5]), ([10, 41, 69], [11, 42, 70])],
    ids=["at the end", "at the start", "inside"],
)
def test_a_mean_that_is_stamped_at_an_end_of_its_interval_is_of_the_middle(tmp_path, stamps, expected):
    edges = np.array([0.0, 31, 59, 90])
    variables = {name: (("time", "y", "x"), ramp()) for name in ("u", "v")}
    variables |= {"time": (("time",), np.array(stamps, "f8")), "ends": (("time", "two"), np.c_[edges[:-1], edges[1:]])}
    times = {"units": "days since 2001-01-01", "bounds": "ends"}
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, time=times, u={"cell_methods": "time: mean"})
    _, samples = sampled(path, "[month, day_of_year]")
    assert samples.inputs[:: ROWS * COLUMNS].tolist() == [[n + 1, day] for n, day in enumerate(expected)]


def test_a_missing_time_has_no_date() -> None:
    days = dates_of(np.ma.masked_invalid([0.0, np.nan, 45.0]), "days since 2001-01-01", "standard")
    times = numbers_of(days, "days since 1970-01-01", "standard")
    assert times.tolist()[::2] == [11323.0, 11368.0]
    assert np.isnan(times[1])
    np.testing.assert_array_equal(clock_values("month", times, "standard"), [1, np.nan, 2])


@pytest.mark.parametrize("rest_s", [-0.4, -0.001, 0.0, 0.001, 0.4])
@pytest.mark.parametrize(("first", "year"), [(10957.0, 2000), (-719530.0, 0)], ids=["2000", "a climatology's year 0"])
def test_a_time_is_that_of_the_nearest_second(first: float, year: int, rest_s: float) -> None:
    """Sums of days leave 05:59:59.999 for 6 o'clock, and a year that ends a little before it does."""
    times = first + np.array([0.25, 31.5, 59.75]) + rest_s / 86400
    assert clock_values("hour_of_day", times, "standard").tolist() == [6, 12, 18]
    assert clock_values("day_of_year", times, "standard").tolist() == [1.25, 32.5, 60.75]
    beginning = np.array([first]) + rest_s / 86400 * (year > 0)  # there is nothing before the year 0
    found = [clock_values(name, beginning, "standard")[0] for name in ("year", "month", "day_of_year", "hour_of_day")]
    assert found == [year, 1, 1, 0]
