"""Whole groups of samples, such as stations and basins, that `data.split=group` holds out."""

import json
import re
from itertools import pairwise

import netCDF4
import numpy as np
import pandas as pd
import pytest
from conftest import launch
from field_files import config_of, in_memory, read_all, write_netcdf

from mpitrain.config import load_run_config
from mpitrain.data import Asked
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError, DataError

NAMES = np.array(["Elbe", "Oder", "Weser", "Rhein", "Main"])
BY_BASIN = "data.split=group", "data.group=basin"


def held_out(path, *settings):
    """The positions of a source's samples, which of them are held out, and the rule's words."""
    config = config_of(path, *settings)
    source = open_source(selection_of(config))
    samples, rule = read_all(source), plan_split(config.split_data, source)
    return samples.grid_index, (rule.roles(samples.grid_index, 0) == VALIDATION), rule.description


def rows_of(basins):
    """Columns of some rows, one after the other, each of a basin; without times."""
    return {"basin": basins, "x": np.arange(float(len(basins))), "y": np.arange(float(len(basins))) ** 0.5}


def write_table(folder, kind, columns):
    """Write a table in one of several formats and return its path."""
    path = folder / f"table.{kind}"
    frame = pd.DataFrame(columns)
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    elif kind == "nc":
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("obs", len(frame))
            for name, values in columns.items():
                dtype = values.dtype if values.dtype.kind in "if" else str
                file.createVariable(name, dtype, ("obs",))[:] = values.astype(object) if dtype is str else values
    else:
        return in_memory(folder, frame, Asked(("x", "y"), others=("basin",)))
    return path


def check_whole(basins, flags, words, num_held_out):
    """Samples of a basin are held out together, and the words name those which are."""
    held = sorted(str(one) for one in NAMES if flags[basins == one].any())
    assert len(held) == num_held_out
    assert all(flags[basins == one].all() for one in held)
    assert words == f"{len(held)} of 5 groups of 'basin' ({', '.join(held)})"
    return held


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "nc", "frame"])
def test_whole_groups_of_rows_are_held_out(tmp_path, kind):
    """In whatever order the rows are, and in each format the same ones."""
    basins = NAMES[np.arange(60) * 7 % 5]
    path = write_table(tmp_path, kind, rows_of(basins))
    index, flags, words = held_out(path, *BY_BASIN, "data.validation_split=0.4")
    assert check_whole(basins[index], flags, words, 2) == ["Elbe", "Weser"]


def test_of_unequal_groups_a_share_of_the_groups_is_held_out_and_folds_meet(tmp_path):
    basins = np.repeat(NAMES, [3, 5, 40, 7, 11])
    path = write_table(tmp_path, "npz", rows_of(basins))
    seen = []
    for fold in range(5):
        index, flags, words = held_out(path, *BY_BASIN, "data.folds=5", f"data.fold={fold}")
        seen += check_whole(basins[index], flags, words, 1)
    assert sorted(seen) == sorted(NAMES)


@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_groups_are_numbers_too_and_rows_without_one_are_trained_on(tmp_path, dtype):
    numbers = np.repeat([6335020, 6435060, 6337515], 8).astype(dtype)
    with netCDF4.Dataset(tmp_path / "f.nc", "w") as file:
        file.createDimension("obs", 24)
        for name, values in rows_of(numbers).items():
            file.createVariable(name, values.dtype, ("obs",), fill_value=-1)[:] = values
        file["basin"][3:5] = -1
    index, flags, words = held_out(tmp_path / "f.nc", *BY_BASIN)
    assert words.startswith("1 of 3 groups of 'basin' (6")
    assert words.endswith("; 2 without one are trained on)")
    of_held = set(numbers[index[flags]].tolist())
    assert len(of_held) == 1
    assert not flags[(index >= 3) & (index < 5)].any()
    assert str(int(of_held.pop())) in words


def write_stations(path, as_text):
    """30 days at 6 stations of 3 basins, whose names are text or letters along a dimension of their own."""
    shape = (30, 6)
    days = np.arange(shape[0], dtype="f8")
    values = {one: (("time", "station"), np.arange(180.0).reshape(shape)) for one in ("x", "y")}
    write_netcdf(path, {"time": (("time",), days)} | values, "", None, time={"units": "days since 2000-01-01"})
    names = np.array(["Elbe", "Elbe", "Oder", "Main", "Main", "Oder"])
    with netCDF4.Dataset(path, "a") as file:
        if as_text:
            file.createVariable("basin", str, ("station",))[:] = names.astype(object)
        else:
            file.createDimension("letters", 4)
            file.createVariable("basin", "S1", ("station", "letters"))[:] = netCDF4.stringtochar(names.astype("S4"))
    return names


@pytest.mark.parametrize("as_text", [False, True])
def test_groups_of_places_are_held_out_at_all_times(tmp_path, as_text):
    names = write_stations(tmp_path / "f.nc", as_text)
    index, flags, words = held_out(tmp_path / "f.nc", *BY_BASIN)
    assert words.startswith("1 of 3 groups of 'basin' (")
    of_samples = names[index % 6]
    held = set(of_samples[flags])
    assert len(held) == 1
    assert flags.sum() == 60
    assert not held & set(of_samples[~flags])


def test_each_file_is_a_group_or_has_one(tmp_path):
    """Files of a station each: by the file itself, or by what it says of its station."""
    for number, name in enumerate(NAMES):
        values = {one: (("time",), np.arange(8.0) + number) for one in ("x", "y")}
        times = {"time": (("time",), np.arange(8.0))}
        write_netcdf(tmp_path / f"{name}.nc", times | values, "", None, time={"units": "days since 2000-01-01"})
        with netCDF4.Dataset(tmp_path / f"{name}.nc", "a") as file:
            file.createVariable("basin", str, ())[...] = str(name)
            file.createVariable("number", "i8", ())[...] = 2**60 + number
            file.createDimension("letters", 8)
            file.createVariable("letter_name", "S1", ("letters",))[:] = list(f"{name:8s}")
    files = json.dumps([str(tmp_path / f"{one}.nc") for one in NAMES])
    given = f"data.data_path={files}", "data.validation_split=0.4"
    index, flags, words = held_out(tmp_path, *given, *BY_BASIN)
    held = check_whole(NAMES[index // 8], flags, words, 2)
    for name, shown in (("letter_name", held), ("file", [f"{one}.nc" for one in held]), ("number", None)):
        index, flags, words = held_out(tmp_path, *given, "data.split=group", f"data.group={name}")
        assert flags.sum() == 16
        assert len(set(index[flags] // 8)) == 2
        assert shown is None or words == f"2 of 5 groups of '{name}' ({', '.join(shown)})"
        assert shown is not None or re.fullmatch(r"2 of 5 groups of 'number' \(115292\d{13}, 115292\d{13}\)", words)


def test_letters_of_cells_are_no_words_of_rows(tmp_path):
    values = {one: (("time", "lat", "lon"), np.arange(64.0).reshape(4, 4, 4)) for one in ("x", "y")}
    write_netcdf(tmp_path / "f.nc", values, "", None)
    kinds = np.array(list("aabbccddabcdabcd")).reshape(4, 4)
    with netCDF4.Dataset(tmp_path / "f.nc", "a") as file:
        file.createVariable("kind", "S1", ("lat", "lon"))[:] = kinds.astype("S1")
    index, flags, words = held_out(tmp_path / "f.nc", "data.split=group", "data.group=kind")
    held = set(kinds.reshape(-1)[index[flags] % 16])
    assert words == f"1 of 4 groups of 'kind' ({min(held)})"
    assert len(held) == 1
    assert not held & set(kinds.reshape(-1)[index[~flags] % 16])


def test_a_map_that_is_stored_for_each_time_is_one_of_places(tmp_path):
    kinds = np.repeat([1, 2, 3, 4], 4).reshape(4, 4)
    values = {one: (("time", "lat", "lon"), np.arange(64.0).reshape(4, 4, 4)) for one in ("x", "y")}
    write_netcdf(tmp_path / "f.nc", values | {"basin": (("time", "lat", "lon"), np.tile(kinds, (4, 1, 1)))}, "", None)
    index, flags, words = held_out(tmp_path / "f.nc", *BY_BASIN)
    assert words.startswith("1 of 4 groups of 'basin' (")
    assert len(set(kinds.reshape(-1)[index[flags] % 16])) == 1
    assert flags.sum() == 16


def test_values_without_names_of_dimensions_are_taken_by_their_size_or_not_at_all(tmp_path):
    for rows, expected in ((5, "1 of 3 groups of 'basin' ("), (6, None)):
        values = np.arange(6.0 * rows * 4).reshape(6, rows, 4)
        np.savez(tmp_path / "f.npz", x=values, y=values, basin=np.repeat([1, 2, 3], 2))
        if expected is None:
            with pytest.raises(
                DataError, match=r"variable 'basin' \(6\), which data.group names, does not lie along the samples'"
            ):
                held_out(tmp_path / "f.npz", *BY_BASIN)
        else:
            index, flags, words = held_out(tmp_path / "f.npz", *BY_BASIN)
            assert words.startswith(expected)
            assert len(set(index[flags] // 20)) == 2
            assert flags.sum() == 40
        words = held_out(tmp_path / "f.npz", *BY_BASIN, "data.samples=fields")[2]
        assert words.startswith("1 of 3 groups of 'basin' (")


def test_text_that_is_missing_is_no_group(tmp_path):
    basins = np.repeat(NAMES, 6).astype(object)
    basins[7], basins[9] = None, "---"
    path = write_table(tmp_path, "parquet", rows_of(basins))
    index, flags, words = held_out(path, *BY_BASIN, 'data.missing_values=["---"]')
    assert words.startswith("1 of 5 groups")
    assert words.endswith("; 2 without one are trained on)")
    assert not flags[(index == 7) | (index == 9)].any()


def test_samples_that_are_ready_have_groups(tmp_path):
    basins = np.repeat(NAMES, 6)
    np.savez(tmp_path / "f.npz", inputs=np.ones((30, 2)), targets=np.arange(30.0), basin=basins)
    config = load_run_config(None, (f"data.data_path={tmp_path / 'f.npz'}", *BY_BASIN)).config
    source = open_source(selection_of(config))
    rule = plan_split(config.split_data, source)
    check_whole(basins, (rule.roles(np.arange(30), 0) == VALIDATION), rule.description, 1)


def test_groups_that_no_sample_is_of_do_not_count(tmp_path):
    columns = rows_of(np.repeat(NAMES, 8)) | {"lat": np.repeat([10.0, 20, 30, 40, 50], 8), "lon": np.zeros(40)}
    path = write_table(tmp_path, "npz", columns)
    words = held_out(path, *BY_BASIN, "domain.latitude_range=[25, 60]")[2]
    assert words.startswith("1 of 3 groups of 'basin' (")


def test_what_is_no_group_is_refused_with_what_to_do(tmp_path):
    path = write_table(tmp_path, "npz", rows_of(NAMES[np.zeros(20, dtype=int)]))
    with pytest.raises(ConfigError, match=r"data.group=basin: 1 group, 2 or more are needed; give"):
        held_out(path, *BY_BASIN)
    with pytest.raises(DataError, match=r"no variable 'lake'; this one has basin, x, y"):
        held_out(path, "data.split=group", "data.group=lake")
    np.savez(path, **rows_of(NAMES), more=np.arange(7.0))
    with pytest.raises(ConfigError, match=r"data.group=basin: 5 groups, 6 or more are needed for data.folds"):
        held_out(path, *BY_BASIN, "data.folds=6")
    with pytest.raises(
        DataError, match=r"variable 'more' \(7\), which data.group names, does not lie along the samples' dimensions"
    ):
        held_out(path, "data.split=group", "data.group=more")
    for settings in (("data.split=group",), ("data.group=basin",), (*BY_BASIN, "data.split_blocks=4")):
        with pytest.raises(ConfigError, match=r"needs data\.(group|split=)"):
            config_of(path, *settings)
    with pytest.raises(ConfigError, match=r"5 of 5 groups of 'basin' would be held out; set a smaller"):
        held_out(path, *BY_BASIN, "data.validation_split=0.95")
    for number, names in enumerate((["007", "008"], ["007", "11B"])):
        pd.DataFrame(rows_of(np.array(names))).to_csv(tmp_path / f"{number}.csv", index=False)
    files = json.dumps([str(tmp_path / f"{number}.csv") for number in range(2)])
    with pytest.raises(DataError, match=r"holds numbers in some files and text in others; use one type in all files"):
        held_out(tmp_path, f"data.data_path={files}", *BY_BASIN)
    shape = (4, 3, 2)
    values = {one: (("time", "y", "x"), np.arange(24.0).reshape(shape)) for one in ("x1", "y1")}
    write_netcdf(tmp_path / "g.nc", values, "", None)
    given = "variables.input_variables=[x1]", "variables.output_variables=[y1]", "data.split=group", "data.group=x1"
    with pytest.raises(DataError, match=r"variable 'x1', which data.group names, varies with both time and location"):
        held_out(tmp_path / "g.nc", *given)
    with pytest.raises(
        DataError, match=r"differs between points, but samples are whole fields; name a variable along time"
    ):
        held_out(tmp_path / "g.nc", *given, "data.samples=fields")


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_on_any_number_of_ranks_the_same_groups_are_held_out(tmp_path, streaming):
    path = write_table(tmp_path, "npz", rows_of(NAMES[np.arange(200) * 7 % 5]))
    given = "train", "--data", path, "variables.input_variables=[x]", "variables.output_variables=[y]", *BY_BASIN
    found = set()
    for ranks in (1, 3):
        output = tmp_path / f"run{ranks}"
        words = [*given, f"data.streaming={streaming}", "--output", output, "--epochs", "2", "training.virtual_ranks=4"]
        done = launch(["-m", "mpitrain", *map(str, words)], ranks)
        assert done.returncode == 0, done.stderr
        record = json.loads((output / "run_record.json").read_text())["result"]
        found.add((record["split"], record["weights_sha256"]))
    assert len(found) == 1
    assert re.fullmatch(r"1 of 5 groups of 'basin' \(\w+\), 40 samples", found.pop()[0])


def test_order_of_rows_and_of_groups_decides_nothing(tmp_path):
    """The same groups are held out where rows, and so the first seen of each, come in another order."""
    basins = np.repeat(NAMES, 9)
    found = []
    for order in (np.arange(45), np.arange(45)[::-1]):
        path = write_table(tmp_path, "npz", rows_of(basins[order]))
        found.append(held_out(path, *BY_BASIN)[2])
    assert all(one == other for one, other in pairwise(found))
