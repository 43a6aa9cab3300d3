"""History files as they are read, and what is said of those that cannot be."""

import netCDF4
import numpy as np
import pytest
from tiny_history import FIELD, GRID, NI, NJ, write_tiny_history

from mpitrain.data.history_file import INPUTS, open_history
from mpitrain.errors import DataError


def read_all(path):
    with open_history(path) as history:
        for name in ("ULAT", "ULON", "umask"):
            history.grid(name)
        return {name: history.field(name) for name in ("aice_h", *INPUTS)}


@pytest.mark.parametrize("num_times", [1, 3])
def test_fields_come_flat_and_row_major_in_float32(tmp_path, num_times):
    path = write_tiny_history(tmp_path / "h.nc", num_times)
    with open_history(path) as history:
        assert (history.num_times, history.grid_shape) == (num_times, (NJ, NI))
        assert history.grid("ULAT").tolist() == [70, 70, 30, 80, -70, 50]
        sst = history.field("sst_h")
    assert sst.dtype == np.float32
    assert sst.tolist() == [200 + i for i in range(num_times * NJ * NI)]


def test_fill_values_and_doubles_come_as_numbers(tmp_path):
    values = np.full((1, NJ, NI), 1e30)
    values[0, 0, 0] = 0.1
    fields = read_all(write_tiny_history(tmp_path / "h.nc", sst_h=(FIELD, values)))
    assert type(fields["sst_h"]) is np.ndarray
    assert fields["sst_h"].tolist() == [np.float32(0.1)] + [np.float32(1e30)] * 5


def test_attributes_that_would_scale_or_mask_are_ignored(tmp_path):
    path = write_tiny_history(tmp_path / "h.nc")
    with netCDF4.Dataset(str(path), "a") as dataset:
        dataset["sst_h"].setncatts({"scale_factor": np.float32(2), "add_offset": np.float32(1)})
        dataset["sss_h"].setncatts({"valid_min": np.float32(302), "missing_value": np.float32(304)})
    fields = read_all(path)
    assert fields["sst_h"].tolist() == [200 + i for i in range(6)]
    assert fields["sss_h"].tolist() == [300 + i for i in range(6)]


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none.nc: no such file; set data.data_path"):
        read_all(tmp_path / "none.nc")


@pytest.mark.parametrize("content", [b"", b"not a NetCDF file at all", b"\x89HDF\r\n\x1a\n" + b"\0" * 40])
def test_no_netcdf_file(tmp_path, content):
    path = tmp_path / "h.nc"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"h.nc: cannot be read as NetCDF"):
        read_all(path)


def test_a_file_cut_off(tmp_path):
    path = write_tiny_history(tmp_path / "h.nc")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"h.nc: cannot be read"):
        read_all(path)


@pytest.mark.parametrize("name", ["ULAT", "umask", "aice_h", *INPUTS])
def test_a_missing_variable_is_named_with_those_that_are_there(tmp_path, name):
    with pytest.raises(DataError, match=f"no variable '{name}'; a CICE history file needs ULAT, .*; this one has "):
        read_all(write_tiny_history(tmp_path / "h.nc", without=name))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"sst_h": (GRID, np.zeros((NJ, NI)))}, r"'sst_h' has shape \(2, 3\), expected \(time, nj, ni\)"),
        ({"ULAT": (FIELD, np.zeros((1, NJ, NI)))}, r"'ULAT' has shape \(1, 2, 3\), expected \(nj, ni\)"),
        ({"umask": (("nj", "other"), np.zeros((NJ, 4)))}, r"'umask' has shape \(2, 4\), expected \(2, 3\) as 'ULAT'"),
        ({"hs_h": (("time", "nj", "other"), np.zeros((1, NJ, 4)))}, r"'hs_h' has shape \(1, 2, 4\), expected \(1"),
        ({"hi_h": (FIELD, np.full((1, NJ, NI), b"x", dtype="S1"))}, r"'hi_h' holds .*, expected numbers"),
    ],
    ids=["field without time", "grid with time", "grid of another shape", "field of another shape", "text"],
)  # fmt: skip
def test_a_variable_that_does_not_fit(tmp_path, changed, words):
    with pytest.raises(DataError, match=words):
        read_all(write_tiny_history(tmp_path / "h.nc", **changed))
