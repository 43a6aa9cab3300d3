"""Files of different variables are one data set: one variable a file, as climate models and reanalyses come."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, read_all, write_netcdf

from mpitrain.data import open_joined_files
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, MissingVariableError

GRID, RANDOM = ("time", "lat", "lon"), np.random.default_rng(0)
TAS, PR = RANDOM.normal(size=(2, 24, 3, 4))
OROGRAPHY = RANDOM.normal(size=(3, 4))
UNITS = {
    "time": {"units": "days since 2001-01-01"}, "lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"},
}  # fmt: skip


def write(
    path: Path, levels: slice, more: dict[str, np.ndarray], times: np.ndarray | None = None, **units: str
) -> Path:
    times = 30.0 * np.arange(24)[levels] if times is None else times
    variables = {
        "time": (("time",), times), "lat": (("lat",), np.array([-30.0, 0, 30])), "lon": (("lon",), 90.0 * np.arange(4)),
    }  # fmt: skip
    variables |= {name: (GRID if values.ndim == 3 else GRID[1:], values) for name, values in more.items()}
    attributes = {name: {**UNITS[name], **({"units": units[name]} if name in units else {})} for name in UNITS}
    return write_netcdf(path, variables, **attributes)


FIRST, SECOND = slice(12), slice(12, 24)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for year, levels in (("2001", FIRST), ("2002", SECOND)):
        write(tmp_path / f"tas_{year}.nc", levels, {"tas": TAS[levels]})
        write(tmp_path / f"pr_{year}.nc", levels, {"pr": PR[levels]})
        write(tmp_path / f"both_{year}.nc", levels, {"tas": TAS[levels], "pr": PR[levels]})
    return tmp_path


def source_of(data: object, *settings: str, inputs: str = "tas, month", predicted: int | None = None) -> SampleSource:
    names = f"variables.input_variables=[{inputs}]", "variables.output_variables=[pr]"
    return open_source(selection_of(config_of(data, *names, *settings)), num_predicted=predicted)


def same(one: SampleSource, other: SampleSource) -> bool:
    first, second = read_all(one), read_all(other)
    return all(np.array_equal(getattr(first, key), getattr(second, key)) for key in ("inputs", "targets", "grid_index"))


@pytest.mark.parametrize("settings", [(), ("data.samples=fields",), ("domain.mask=tas > 0 and pr < 1",)])
def test_samples_are_those_of_one_file(folder, settings):
    joined, whole = source_of(folder / "[pt]*_*.nc", *settings), source_of(folder / "both_*.nc", *settings)
    assert same(joined, whole)
    assert [path.name for path in joined.paths] == ["pr_2001.nc", "tas_2001.nc", "pr_2002.nc", "tas_2002.nc"]
    assert any("pr_2001.nc: read together with" in line and "tas_2001.nc" in line for line in joined.notices)
    index = np.arange(24) * (1 if settings == ("data.samples=fields",) else 12)
    if not settings:
        assert open_coordinates(joined).at(index)["time"].tolist() == open_coordinates(whole).at(index)["time"].tolist()


def test_lags_derived_variables_and_validation_files_go_by_part(folder):
    inputs = "'tas[time-1]', 'tas - pr[time-1]'"
    for names in (["tas_2001.nc", "tas_2002.nc", "pr_2001.nc", "pr_2002.nc"], ["pr_2001.nc", "tas_2001.nc"]):
        data = "[" + ", ".join(str(folder / name) for name in names) + "]"
        whole = folder / ("both_*.nc" if len(names) == 4 else "both_2001.nc")
        assert same(source_of(data, inputs=inputs), source_of(whole, inputs=inputs))
    held = f"data.validation_path=[{folder / 'tas_2002.nc'}, {folder / 'pr_2002.nc'}]"
    data = f"[{folder / 'tas_2001.nc'}, {folder / 'pr_2001.nc'}]"
    joined = source_of(data, held)
    assert joined.first_held_out == 12
    assert same(joined, source_of(folder / "both_*.nc"))


def test_a_file_without_time_goes_with_all(folder):
    write(folder / "orog.nc", slice(1), {"orog": OROGRAPHY[None]})
    data = f"[{folder / 'tas_*.nc'}, {folder / 'orog.nc'}, {folder / 'pr_*.nc'}]"
    words = r"orog.nc: has one time, the other files have more; if its data do not depend on time, remove the dimension"
    with pytest.raises(DataError, match=words):
        source_of(data, inputs="tas, orog")
    (folder / "orog.nc").unlink()
    write_netcdf(folder / "orog.nc", {"orog": (GRID[1:], OROGRAPHY)})
    found = read_all(source_of(data, inputs="tas, orog")).inputs[:, 1]
    assert found.reshape(24, 12) == pytest.approx(np.tile(OROGRAPHY.reshape(-1), (24, 1)), rel=1e-6)
    first = f"[{folder / 'orog.nc'}, {folder / 'tas_*.nc'}, {folder / 'pr_*.nc'}]"
    assert same(source_of(first, inputs="tas, orog"), source_of(data, inputs="tas, orog"))


def test_files_without_anything_in_common_are_refused(tmp_path):
    np.savez(tmp_path / "u.npz", tas=np.arange(9.0))
    np.savez(tmp_path / "w.npz", pr=np.arange(9.0))
    with pytest.raises(DataError, match=r"w.npz: has no dimension in common with .*u.npz"):
        source_of(tmp_path / "?.npz", inputs="tas")


def test_times_are_compared_as_instants_and_places_by_a_thousandth_of_a_degree(folder):
    with_it = lambda path: f"[{folder / 'tas_2001.nc'}, {path}]"  # noqa: E731
    hours = 24 * 30.0 * np.arange(12)
    path = write(folder / "p0.nc", FIRST, {"pr": PR[FIRST]}, hours, time="hours since 2001-01-01")
    assert same(source_of(with_it(path)), source_of(folder / "both_2001.nc"))
    path = write(folder / "p1.nc", FIRST, {"pr": PR[FIRST]}, hours + 1, time="hours since 2001-01-01")
    with pytest.raises(DataError, match=r"tas_2001.nc: files such as .*p1.nc have no time in common with it; files of"):
        source_of(with_it(path))
    for name, moved in (("p3.nc", 0.0005), ("p4.nc", 0.01)):
        variables = {"lat": (("lat",), np.array([-30.0, 0, 30]) + moved), "pr": (GRID, PR[FIRST]),
                     "time": (("time",), 30.0 * np.arange(12)), "lon": (("lon",), 90.0 * np.arange(4))}  # fmt: skip
        write_netcdf(folder / name, variables, **UNITS)
    assert len(read_all(source_of(with_it(folder / "p3.nc")))) == 144
    with pytest.raises(DataError, match=r"p4.nc: 'lat' differs from that of .*tas_2001.nc"):
        source_of(with_it(folder / "p4.nc"))


@pytest.mark.parametrize("streamed", [False, True])
def test_times_that_one_file_lacks_are_left_out_and_counted(folder, streamed):
    kept = np.delete(np.arange(24), [3, 4, 17])
    path = write(folder / "pr.nc", slice(24), {"pr": PR[kept]}, 30.0 * kept)
    settings = ("data.streaming=true",) if streamed else ()
    data = f"[{folder / 'tas_*.nc'}, {path}]"
    source = source_of(data, *settings)
    found = read_all(source)
    assert found.inputs[:, 0] == pytest.approx(TAS[kept].reshape(-1), rel=1e-6)
    assert found.targets[:, 0] == pytest.approx(PR[kept].reshape(-1), rel=1e-6)
    assert found.inputs[::12, 1].tolist() == read_all(source_of(folder / "both_*.nc")).inputs[::12, 1][kept].tolist()
    assert any("3 times that not all of them have are left out" in line for line in source.notices)


def rows(path: Path, name: str, values: list[float], **more: object) -> Path:
    variables = {"time": (("obs",), np.array([0.0, 0, 1, 1])), name: (("obs",), np.array(values))}
    variables |= {key: (("obs",), np.array(one)) for key, one in more.items()}
    return write_netcdf(path, variables, time=UNITS["time"])


def test_rows_and_levels_with_other_labels_are_not_paired(folder):
    for name, order in (("a", [1, 2, 1, 2]), ("b", [2, 1, 2, 1])):
        rows(folder / f"{name}_tas.nc", "tas", [1, 2, 3, 4], station=[1, 2, 1, 2])
        rows(folder / f"{name}_pr.nc", "pr", [2, 1, 4, 3], station=order)
        both = f"[{folder / f'{name}_tas.nc'}, {folder / f'{name}_pr.nc'}]"
        if name == "a":
            assert len(read_all(source_of(both, inputs="tas"))) == 4
        else:
            with pytest.raises(DataError, match=r"b_pr.nc: 'station' differs from that of"):
                source_of(both, inputs="tas")
    lev = ("time", "lev", "lat", "lon")
    for name, levels in (("tas", [1000.0, 500]), ("pr", [500.0, 1000])):
        values = np.arange(48.0).reshape(2, 2, 3, 4)
        variables = {"time": (("time",), np.arange(2.0)), name: (lev, values), "plev": (("lev",), np.array(levels))}
        write_netcdf(folder / f"l_{name}.nc", variables, time=UNITS["time"], plev={"units": "hPa", "positive": "down"})
    with pytest.raises(DataError, match=r"'plev' differs from that of"):
        source_of(folder / "l_*.nc", "variables.output_variables=['pr[plev=500]']", inputs="'tas[plev=500]'")


def test_means_that_are_stamped_at_other_ends_of_the_same_months_are_one_month(folder):
    ends = np.array([0.0, 31, 59, 90, 120])
    bounds = np.stack([ends[:-1], ends[1:]], axis=1)
    for name, stamps, values in (("tas", ends[1:], TAS), ("pr", ends[:-1], PR)):
        variables = {"time": (("time",), stamps), "time_bnds": (("time", "nb"), bounds), name: (GRID, values[:4])}
        attributes = {"time": {**UNITS["time"], "bounds": "time_bnds"}, name: {"cell_methods": "time: mean"}}
        write_netcdf(folder / f"m_{name}.nc", variables, **attributes)
    found = read_all(source_of(folder / "m_*.nc", inputs="tas"))
    assert found.inputs[:, 0] == pytest.approx(TAS[:4].reshape(-1), rel=1e-6)
    assert found.targets[:, 0] == pytest.approx(PR[:4].reshape(-1), rel=1e-6)


def test_hours_that_are_rounded_in_another_way_are_the_same(folder):
    for name, times, values in (("tas", np.arange(24) / 24, TAS), ("pr", np.cumsum([0.0] + [1 / 24] * 23), PR)):
        write(folder / f"h_{name}.nc", slice(24), {name: values}, times)
    assert len(read_all(source_of(folder / "h_*.nc", inputs="tas"))) == 24 * 12


def test_levels_in_another_order_are_taken_by_their_times(folder):
    order = np.random.default_rng(0).permutation(24)
    write(folder / "o_pr.nc", slice(24), {"pr": PR[order]}, 30.0 * order)
    write(folder / "o_tas.nc", slice(24), {"tas": TAS})
    assert same(source_of(f"[{folder / 'o_tas.nc'}, {folder / 'o_pr.nc'}]"), source_of(folder / "both_*.nc"))


def test_a_needed_variable_that_two_files_hold_differently_is_refused(folder):
    for name, values in (("tas", TAS), ("pr", PR)):
        write(folder / f"v_{name}.nc", slice(24), {name: values, "sst": values + 1})
    for inputs, more in (
        ("tas, sst", ()),
        ("'tas + sst'", ()),
        ("tas, 'sst[time-1]'", ()),
        ("tas", ("domain.mask=sst > 0",)),
    ):
        with pytest.raises(DataError, match=r"'sst' differs from that of .*each variable in one"):
            source_of(folder / "v_*.nc", *more, inputs=inputs)
    assert len(read_all(source_of(folder / "v_*.nc", inputs="tas"))) == 288


def test_overlapping_files_and_members_go_by_most_common_times_and_by_number(folder):
    for number, levels in enumerate((slice(13), slice(12, 24))):
        write(folder / f"x_tas{number}.nc", levels, {"tas": TAS[levels]})
        write(folder / f"x_pr{number}.nc", levels, {"pr": PR[levels]})
        write(folder / f"e_tas{number}.nc", FIRST, {"tas": TAS[FIRST] + number})
        write(folder / f"e_pr{number}.nc", FIRST, {"pr": PR[FIRST] + number})
    found = read_all(source_of(folder / "x_*.nc", inputs="tas"))
    assert found.inputs[:, 0] == pytest.approx(TAS.reshape(-1), rel=1e-6)
    assert found.targets[:, 0] == pytest.approx(PR.reshape(-1), rel=1e-6)
    members = read_all(source_of(folder / "e_*.nc", inputs="tas"))
    assert members.inputs[:, 0] == pytest.approx(np.concatenate([TAS[FIRST], TAS[FIRST] + 1]).reshape(-1), rel=1e-5)
    assert members.targets[:, 0] == pytest.approx(np.concatenate([PR[FIRST], PR[FIRST] + 1]).reshape(-1), rel=1e-5)


def test_calendars_are_named(folder):
    for name, calendar in (("tas", "standard"), ("pr", "360_day")):
        variables = {"time": (("time",), np.arange(12.0)), name: (GRID, TAS[FIRST])}
        write_netcdf(folder / f"c_{name}.nc", variables, time={**UNITS["time"], "calendar": calendar})
    with pytest.raises(DataError, match=r"c_tas.nc: its calendar is 'standard', that of .*c_pr.nc is '360_day'"):
        source_of(folder / "c_*.nc", inputs="tas")


def test_one_file_of_many_years_goes_with_files_of_a_year_each(folder):
    path = write(folder / "pr.nc", slice(24), {"pr": PR})
    assert same(source_of(f"[{path}, {folder / 'tas_*.nc'}]"), source_of(folder / "both_*.nc"))


def test_files_that_do_not_fit_are_named(folder):
    data = f"[{folder / 'tas_2001.nc'}, {folder / 'tas_2002.nc'}, {folder / 'both_2001.nc'}]"
    with pytest.raises(MissingVariableError, match=r"tas_2001.nc: no variable 'pr'"):
        source_of(data)
    write(folder / "tas_2003.nc", FIRST, {"tas": TAS[FIRST]}, 720 + 30.0 * np.arange(12))
    some = source_of(folder / "[pt]*_*.nc")
    assert same(some, source_of(folder / "both_*.nc"))
    assert any("12 times that not all of them have are left out" in line for line in some.notices)
    with pytest.raises(MissingVariableError, match=r"pr_2001.nc: no variable 'nothing'"):
        source_of(folder / "[pt]*_200[12].nc", inputs="nothing")


def test_a_file_beside_that_changes_is_noticed(folder):
    source = source_of(folder / "[pt]*_2001.nc")
    os.utime(folder / "tas_2001.nc", (1, 1))
    with pytest.raises(DataError, match=r"tas_2001.nc: changed since the run began"):
        read_all(source)


def test_predictions_need_the_inputs_alone(folder):
    write(folder / "hus_2001.nc", FIRST, {"hus": PR[FIRST]})
    data = f"[{folder / 'tas_2001.nc'}, {folder / 'hus_2001.nc'}]"
    source = source_of(data, inputs="tas, hus", predicted=1)
    assert not source.has_targets
    assert read_all(source).inputs[:, 1] == pytest.approx(PR[FIRST].reshape(-1), rel=1e-6)
    alone = source_of(folder / "tas_*.nc", inputs="tas", predicted=1)
    assert len(read_all(alone)) == 288
    for order in (folder / "[pt]*_*.nc", f"[{folder}/tas_*.nc, {folder}/pr_*.nc]"):
        both = source_of(order, inputs="tas", predicted=1)
        assert both.has_targets
        assert len(read_all(both)) == 288


def test_one_slice_reads_all_of_the_further_axes_of_files_that_share_some_times(tmp_path: Path) -> None:
    first = write(tmp_path / "tas.nc", slice(24), {"tas": TAS})
    levels = write_netcdf(
        tmp_path / "ta.nc",
        {"time": (("time",), 30.0 * np.arange(12)), "ta": (("lev", "time"), np.arange(24.0).reshape(2, 12))},
        time=UNITS["time"],
    )
    with open_joined_files([first, levels]) as file:
        assert file.read_stored("ta", (slice(1, 2),)).tolist() == [list(range(12, 24))]
        assert file.read_stored("tas", (slice(0, 2),)).shape == (2, 3, 4)
