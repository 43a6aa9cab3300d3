"""Zarr stores, CSV, Parquet, and coordinates in radians: what is read, and what is refused in one line."""

import sys

import numpy as np
import pytest
from field_files import config_of, ramp, read_all, write_netcdf
from user_files import csv, store_array, zarr_2, zarr_3

from mpitrain.data.files.open import open_field_file
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError, MissingDependencyError

zarr = pytest.importorskip("zarr")
pytest.importorskip("pyarrow")
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
def test_a_missing_chunk_is_not_a_measurement(tmp_path, version):
    path = store(tmp_path / "f.zarr", version)
    name = "1.0.0" if version == 2 else "c/1/0/0"
    (path / "x" / name).unlink()
    if version == 2:  # where the fill value says that a number is none
        samples = read_all(open_source(selection_of(config_of(path))))
        assert np.isnan(samples.inputs.reshape(SHAPE)[4:]).all()
        assert np.isfinite(samples.inputs[1:80]).all()
        return
    with pytest.raises(DataError, match=r"f.zarr: variable 'x': 1 of its 2 chunks are missing, and would be read as 0"):
        read_all(open_source(selection_of(config_of(path))))


def test_words_in_a_table_are_one_line(tmp_path):
    case = csv(tmp_path)
    words = "variables.input_variables=[site]", "variables.output_variables=[flux]"
    with pytest.raises(DataError, match=r"one.csv: variable 'site' holds text, expected numbers") as caught:
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
