"""Zarr stores, CSV, Parquet, and coordinates in radians: what is read, and what is refused in one line."""

import sys
from contextlib import closing
from pathlib import Path

import numcodecs.zstd
import numpy as np
import pytest
import zarr
from field_files import config_of, ramp, read_all, write_netcdf
from user_files import csv, store_array, zarr_2, zarr_3

from mpitrain.data.files.decoding import read
from mpitrain.data.files.zarr import _zstd_size
from mpitrain.data.formats.open import open_field_file
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError, MissingDependencyError

SHAPE = (8, 4, 5)


def store(path, version, **attributes):
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, first in (("x", 0.0), ("y", 1000.0)):
        store_array(group, version, name, ("time", "lat", "lon"), ramp(first, SHAPE), attributes)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("target_bytes", [100, 2**20])
def test_a_store_gives_the_values_that_were_written(tmp_path, version, target_bytes):
    path = store(tmp_path / "f.zarr", version, _FillValue=7.0)
    source = open_source(selection_of(config_of(tmp_path / "*.zarr", "variables.input_variables=['x[time-1]', x]")))
    assert source.files[0].path == path
    assert source.grid_shape == SHAPE[1:]
    inputs = read_all(source).inputs
    expected = ramp(0, SHAPE)
    expected.reshape(-1)[7] = np.nan
    assert np.array_equal(inputs[:, 1], expected[1:].reshape(-1), equal_nan=True)
    assert np.array_equal(inputs[:, 0], expected[:-1].reshape(-1), equal_nan=True)


@pytest.mark.parametrize("version", [2, 3])
def test_a_missing_chunk_is_the_fill_value_which_of_version_2_is_no_measurement(tmp_path, version):
    path = store(tmp_path / "f.zarr", version)
    (path / "x" / ("1.0.0" if version == 2 else "c/1/0/0")).unlink()
    source = open_source(selection_of(config_of(path)))
    values = read_all(source).inputs.reshape(SHAPE)
    assert np.isnan(values[4:]).all() if version == 2 else (values[4:] == 0).all()
    assert np.isfinite(values.reshape(-1)[1:80]).all()
    told = [line for line in source.notices if "1 of its 2 chunks are not stored, and are read as 0" in line]
    assert len(told) == int(version == 3)


@pytest.mark.parametrize("dtype", ["i2", "u1", "f4"])
@pytest.mark.parametrize("version", [2, 3])
def test_the_fill_value_of_version_2_marks_what_is_missing_in_numbers_of_any_kind(
    tmp_path: Path, version: int, dtype: str
) -> None:
    group = zarr.open_group(str(tmp_path / "f.zarr"), mode="w", zarr_format=version)
    for name in ("x", "y"):
        group.create_array(name, shape=(4,), dtype=dtype, fill_value=7)[:] = np.array([1, 7, 3, 0], dtype)
    found = read_all(open_source(selection_of(config_of(tmp_path / "f.zarr")))).inputs[:, 0]
    np.testing.assert_array_equal(found, [1, np.nan if version == 2 else 7, 3, 0])


def test_words_in_a_table_are_one_line(tmp_path):
    case = csv(tmp_path)
    words = "variables.input_variables=[site]", "variables.output_variables=[flux]"
    with pytest.raises(DataError, match=r"one.csv: variable 'site' holds text, such as 'north'") as caught:
        open_source(selection_of(config_of(case.files[0], *words)))
    assert "\n" not in str(caught.value)
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataError, match=r"bad.csv: cannot be read as CSV \(.*Expected 2 columns"):
        open_field_file(tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("module", "name", "words"), [("zarr", "f.zarr", "'zarr>=3'"), ("pyarrow.csv", "f.csv", "pyarrow")]
)
def test_what_is_not_installed_is_named_with_its_command(tmp_path, monkeypatch, module, name, words):
    store(tmp_path / "f.zarr", 3)
    (tmp_path / "f.csv").write_text("a\n1\n")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=f"python -m pip install {words}"):
        open_field_file(tmp_path / name)


def test_coordinates_in_radians_are_degrees(tmp_path):
    clat = np.radians(np.array([-80.0, -10.0, 0.0, 45.0, 89.0]))
    values = {name: (("time", "ncells"), ramp(shape=(2, 5))) for name in ("x", "y")}
    path = write_netcdf(
        tmp_path / "f.nc", values | {"clat": (("ncells",), clat)}, "", None,
        clat={"units": "radian", "standard_name": "latitude"},
    )  # fmt: skip
    samples = read_all(open_source(selection_of(config_of(path, "domain.latitude_range=[40, 90]"))))
    assert samples.grid_index.tolist() == [3, 4, 8, 9]


@pytest.mark.parametrize("make", [zarr_2, zarr_3])
def test_a_folder_that_is_no_whole_store(tmp_path, make):
    path = make(tmp_path).files[0]
    for mark in ("zarr.json", ".zgroup", ".zmetadata"):
        (path / mark).unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"one.zarr: a folder; add a pattern"):
        open_source(selection_of(config_of(path)))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65791, 65792, 300_000])
def test_a_zstandard_frame_tells_the_size_that_it_unpacks_to(size: int) -> None:
    assert _zstd_size(numcodecs.zstd.Zstd().encode(b"a" * size), size) == size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "2.0;3.5\n2.4;3.1\n",
            "first line holds numbers, such as 2.0, and no names of its 2 columns; .* such as c1;c2$",
        ),
        ("19747,01/20/2014,9.5,-1e3,NaN\n" * 2, "first line holds numbers, such as 19747, .*c1,c2,c3,c4,...$"),
        ("1\t1\n2\t3\n", r"first line holds numbers, such as 1, .*such as c1\\tc2$"),
    ],
)
def test_a_table_without_names_is_told_what_to_write(tmp_path, text, words):
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        open_field_file(tmp_path / "f.csv")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b\n1,2\n3,4\n", ["a", "b"]), ("a;b\n1;2\n3;4\n", ["a", "b"]), ('"a b"\tc\n1\t2\n3\t4\n', ["a b", "c"]),
        ("1990,1991\n1,2\n3,4\n", ["1990", "1991"]), ("0,1,x\n1,2,3\n", ["0", "1", "x"]),
        ("a;b,c\n1,2\n", ["a;b", "c"]),
    ],
)  # fmt: skip
def test_columns_are_separated_as_the_line_of_names_is(tmp_path, text, names):
    (tmp_path / "f.csv").write_text(text)
    with closing(open_field_file(tmp_path / "f.csv")) as file:
        assert list(file.variables) == names
        assert read(file, names[1], (slice(None),))[0] == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_dates_is_the_time_of_the_rows(tmp_path, suffix):
    """Its parts are inputs, lags follow it, and samples stay in the order of the rows."""
    import pyarrow
    import pyarrow.parquet

    columns = {"when": np.array(["2000-01-31T06:00", "2000-02-01T06:00", "NaT", "2000-02-03T06:00"], "datetime64[s]")}
    columns |= {name: np.arange(4.0) + first for name, first in (("x", 0), ("y", 10))}
    path = tmp_path / f"f.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), str(path))
    else:
        rows = (
            "" if np.isnat(row[0]) else str(row[0]).replace("T", " ") for row in zip(*columns.values(), strict=True)
        )
        path.write_text("when,x,y\n" + "".join(f"{when},{x},{10 + x}\n" for x, when in enumerate(rows)))
    source = open_source(selection_of(config_of(path, "variables.input_variables=[x, month, hour_of_day]")))
    found = read_all(source).inputs
    np.testing.assert_array_equal(found[[0, 1, 3]], [[0, 1, 6], [1, 2, 6], [3, 2, 6]])
    assert found[2, 0] == 2
    assert np.isnan(found[2, 1:]).all()
    assert open_coordinates(source).times[0] == 10987.25
    lagged = config_of(path, "variables.input_variables=['x[time-1]']")
    assert read_all(open_source(selection_of(lagged))).inputs.tolist() == [[0]]  # one row has one a day before
    # As an input it is days, as any number is.
    assert (
        read_all(open_source(selection_of(config_of(path, "variables.input_variables=[when]")))).inputs[0] == 10987.25
    )


def test_lags_of_a_table_with_dates(tmp_path):
    rows = "".join(f"2000-01-{day:02},{day}.5,{day}\n" for day in range(1, 6))
    (tmp_path / "f.csv").write_text("date,x,y\n" + rows)
    config = config_of(tmp_path / "f.csv", "variables.input_variables=['x[time-1]', day_of_year]")
    samples = read_all(open_source(selection_of(config)))
    assert samples.inputs.tolist() == [[day - 0.5, day] for day in range(2, 6)]
    assert samples.targets.ravel().tolist() == [2, 3, 4, 5]
