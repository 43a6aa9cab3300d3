"""The same record twice: time levels of files that overlap count once, and a copy of the training data is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, read_all, write_netcdf
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION
from mpitrain.data.describe.copies import find_same_file
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError
from mpitrain.inference.roles import find_roles

ROWS, COLUMNS = 3, 4
POINTS = ROWS * COLUMNS


def days_file(path: Path, days, units="days since 2000-01-01", scale=1.0, other=0.0) -> Path:
    """Days whose values are those of each day, in whatever file it is; `other` makes them another's."""
    days = np.asarray(days, dtype=float)
    values = {
        name: np.stack([np.random.default_rng([seed, int(day)]).normal(size=(ROWS, COLUMNS)) + other for day in days])
        for seed, name in enumerate("xy")
    }
    variables = {name: (("time", "nj", "ni"), one) for name, one in values.items()}
    return write_netcdf(path, variables | {"time": (("time",), days * scale)}, "", None, time={"units": units})


def opened(paths, *settings, target_bytes=2**20):
    files = f"data.data_path=[{', '.join(map(str, paths))}]"
    config = config_of(paths[0], files, *settings)
    return config, open_source(selection_of(config), target_bytes)


@pytest.mark.parametrize("kind", ["points", "fields"])
@pytest.mark.parametrize("target_bytes", [100, 2**20])
def test_levels_of_files_that_overlap_count_once(tmp_path, kind, target_bytes):
    first = days_file(tmp_path / "a.nc", np.arange(8))
    second = days_file(tmp_path / "b.nc", np.arange(5, 12), "hours since 2000-01-01", 24.0)
    _, source = opened([first, second], f"data.samples={kind}", target_bytes=target_bytes)
    samples = read_all(source)
    assert len(samples) == 12 * (POINTS if kind == "points" else 1)
    whole = read_all(opened([days_file(tmp_path / "c.nc", np.arange(12))], f"data.samples={kind}")[1])
    assert np.array_equal(samples.inputs, whole.inputs)
    assert any(f"b.nc: 3 of its 7 times are also in {first}, with equal values: each counts once" in one
               for one in source.notices)  # fmt: skip
    _, before = opened([first, second], f"data.samples={kind}", "data.rules=1")
    assert len(read_all(before)) == 15 * (POINTS if kind == "points" else 1)


def test_a_time_twice_in_one_file_and_one_with_other_values(tmp_path):
    _, source = opened([days_file(tmp_path / "a.nc", [0, 1, 1, 2])])
    assert len(read_all(source)) == 3 * POINTS
    assert any("a.nc: 1 of its 4 times are in it more than once, with equal values" in one for one in source.notices)
    other = days_file(tmp_path / "b.nc", [2, 3], other=1e-6)
    _, source = opened([tmp_path / "a.nc", other])
    assert len(read_all(source)) == 5 * POINTS


def test_members_of_an_ensemble_are_samples_of_their_own(tmp_path):
    files = [days_file(tmp_path / f"member_{n}.nc", np.arange(6), other=float(n)) for n in range(3)]
    config, source = opened(files, "data.split=time", "data.split_blocks=3", "data.validation_split=0.3")
    samples = read_all(source)
    assert len(samples) == 18 * POINTS
    (line,) = [one for one in source.notices if "with different values: all of them count" in one]
    assert "member_1.nc: 6 of its 6 times are also in" in line
    assert "member_0.nc, and 12 times of other files are repeated, with" in line
    flags = plan_split(config.split_data, source).roles(samples.grid_index, 0) == VALIDATION
    held = {level % 6 for level in samples.grid_index[flags] // POINTS}
    assert len(held) == 2
    assert not held & {level % 6 for level in samples.grid_index[~flags] // POINTS}


def test_held_out_files_are_a_series_of_their_own(tmp_path):
    trained, held = days_file(tmp_path / "a.nc", np.arange(8)), days_file(tmp_path / "b.nc", np.arange(5, 12))
    _, source = opened([trained], f"data.validation_path={held}")
    assert len(read_all(source)) == 15 * POINTS
    assert any("b.nc: 3 of the held-out times are also trained on" in one for one in source.notices)


def test_members_that_overlap_themselves_count_each_level_once(tmp_path):
    members = [("p0a", 0, 0.0), ("p0b", 3, 0.0), ("p1a", 0, 1.0), ("p1b", 3, 1.0)]
    files = [days_file(tmp_path / f"{name}.nc", first + np.arange(5), other=other) for name, first, other in members]
    _, source = opened(files)
    assert len(read_all(source)) == 16 * POINTS
    assert source.layout.repeats[[5, 6, 15, 16]].tolist() == [3, 4, 13, 14]


@pytest.mark.parametrize("odd", [-9999.0, 1e20, np.inf, np.nan])
def test_what_is_no_value_makes_nothing_equal(tmp_path, odd):
    for number in range(2):
        values = np.random.default_rng(number).normal(size=(4, ROWS, COLUMNS))
        values[:, 0, 0] = odd
        variables = {name: (("time", "nj", "ni"), values) for name in ("x", "y")}
        times = {"time": (("time",), np.arange(4.0))}
        write_netcdf(tmp_path / f"{number}.nc", variables | times, "", None, time={"units": "days since 2000-01-01"})
    _, source = opened([tmp_path / "0.nc", tmp_path / "1.nc"])
    assert source.layout.repeats is None


def test_lags_reach_over_files_that_overlap(tmp_path):
    for name, first in (("b", 5), ("a", 0)):
        days = first + np.arange(8.0)
        values = np.broadcast_to(days[:, None, None], (8, ROWS, COLUMNS))
        variables = {one: (("time", "nj", "ni"), values) for one in ("x", "y")}
        times = {"time": (("time",), days)}
        write_netcdf(tmp_path / f"{name}.nc", variables | times, "", None, time={"units": "days since 2000-01-01"})
    _, source = opened([tmp_path / "b.nc", tmp_path / "a.nc"], "variables.input_variables=['x[time-1]']")
    samples = read_all(source)
    assert sorted(set(samples.targets[:, 0].tolist())) == list(range(1, 13))
    assert len(samples) == 12 * POINTS
    assert (samples.targets - samples.inputs == 1).all()


def test_levels_that_repeat_have_the_role_of_those_they_repeat(tmp_path):
    first, second = days_file(tmp_path / "a.nc", np.arange(8)), days_file(tmp_path / "b.nc", np.arange(5, 12))
    config, _ = opened([first, second], "data.validation_split=0.3")
    predicted = open_source(selection_of(config_of(first, f"data.data_path=[{first}, {second}]")), num_predicted=1)
    assert predicted.layout.repeats is None

    def body(communicator):
        return find_roles(selection_of(config), config.split_data, predicted, played_ranks_of(communicator))

    roles = on_played_ranks(2, body)[0].reshape(15, POINTS)
    assert np.array_equal(roles[8:11], roles[5:8])
    assert (roles > 0).all()
    assert {1, 2} == set(roles.reshape(-1).tolist())


@pytest.mark.parametrize("how", ["itself", "link", "hard link", "copy"])
def test_training_data_under_another_name_are_not_held_out(tmp_path, how):
    trained, other = days_file(tmp_path / "a.nc", np.arange(8)), tmp_path / "again.nc"
    if how == "itself":
        other = trained
    elif how == "link":
        other.symlink_to(trained)
    elif how == "hard link":
        other.hardlink_to(trained)
    else:
        shutil.copy(trained, other)
    with pytest.raises(
        DataError, match=r"is in data.validation_path and in data.data_path.*do not show the skill on others"
    ):
        opened([trained], f"data.validation_path={other}")
    if how in ("hard link", "copy"):
        opened([trained], f"data.validation_path={other}", "data.rules=1")


def test_files_of_equal_sizes_are_told_apart_by_their_contents(tmp_path):
    content = bytearray(np.random.default_rng(0).bytes(500_000))
    paths = [tmp_path / f"{name}.bin" for name in "abc"]
    for number, path in enumerate(paths):
        content[200_000] = number  # between the parts that are looked at first
        path.write_bytes(content)
    assert find_same_file(paths[:2], paths[2:]) is None
    shutil.copy(paths[1], tmp_path / "copy.bin")
    assert find_same_file(paths, [tmp_path / "copy.bin"]) == (tmp_path / "copy.bin", paths[1])


def test_rows_of_a_table_with_equal_times_and_values_all_count(tmp_path):
    """They may be of several stations, depths or species, which a file need not tell."""
    rows = "".join(f"2000-01-{day:02d},0.0,0.0\n" for day in range(1, 21))
    (tmp_path / "a.csv").write_text(f"time,x,y\n{rows}{rows}")
    assert len(read_all(opened([tmp_path / "a.csv"])[1])) == 40


def test_files_are_read_in_the_order_of_their_times(tmp_path):
    late, early = days_file(tmp_path / "a.nc", np.arange(5, 9)), days_file(tmp_path / "b.nc", np.arange(5))
    held = [days_file(tmp_path / f"h{number}.nc", days) for number, days in enumerate(([12, 13], [10, 11]))]
    whole = days_file(tmp_path / "c.nc", [*range(9), 10, 11, 12, 13])
    of_held = f"data.validation_path=[{', '.join(map(str, held))}]"
    _, source = opened([late, early], of_held)
    assert [record.path for record in source.files] == [early, late, held[1], held[0]]
    assert [record.first_time for record in source.files] == [0, 5, 9, 11]
    assert source.first_held_out == 9
    assert np.array_equal(read_all(source).inputs, read_all(opened([whole])[1]).inputs)
    assert sum("not given in order of time; they are read in order of time" in one for one in source.notices) == 2
    assert [one.path for one in opened([late, early], "data.rules=1")[1].files] == [late, early]


@pytest.mark.parametrize("several", [True, False])
def test_members_with_times_in_common_stay_in_the_order_of_the_list(tmp_path, several):
    days = [[day, day + 4] for day in (4, 0, 4, 0)] if several else [[day] for day in (0, 1, 2, 0, 1, 2)]
    paths = [days_file(tmp_path / f"{number}.nc", one, other=number) for number, one in enumerate(days)]
    _, source = opened(paths)
    assert [record.path for record in source.files] == paths
    assert not any("order of time" in one for one in source.notices)
