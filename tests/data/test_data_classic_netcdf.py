"""The ends of variables in classic NetCDF files, against the sizes of files that the NetCDF library writes."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest

from mpitrain.data.files.netcdf_classic import read_variable_ends

pytestmark = pytest.mark.fast

FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


def write_file(path: Path, kind: str, record_variables: int) -> None:
    """Attributes, a scalar, and `record_variables` of the variables along an unlimited dimension of 3 records."""
    with netCDF4.Dataset(path, "w", format=kind) as dataset:
        dataset.title, dataset.levels = "abc", np.arange(3.0)
        dataset.createDimension("time", None if record_variables else 3)
        dataset.createDimension("ni", 5)
        dataset.createVariable("lat", "f4", ("ni",))[:] = 1
        dataset["lat"].units = "degrees"
        dataset.createVariable("scalar", "i2", ())[...] = 3
        dataset.createVariable("first", "i2", ("time", "ni"))[:] = np.ones((3, 5))
        if record_variables != 1:
            dataset.createVariable("second", "f8", ("time", "ni"))[:] = np.ones((3, 5))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("record_variables", [0, 1, 2])
def test_the_last_variable_ends_where_the_file_does(tmp_path: Path, kind: str, record_variables: int) -> None:
    path = tmp_path / "history.nc"
    write_file(path, kind, record_variables)
    ends = read_variable_ends(path)
    assert set(ends) == {"lat", "scalar", "first"} | ({"second"} if record_variables != 1 else set())
    # The file may end with up to 3 bytes that only fill a word.
    assert 0 <= path.stat().st_size - max(ends.values()) < 4


def test_other_formats_are_left_to_their_library(tmp_path: Path) -> None:
    write_file(tmp_path / "history.nc", "NETCDF4", 1)
    assert read_variable_ends(tmp_path / "history.nc") == {}


def test_a_header_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.nc"
    write_file(path, FORMATS[0], 2)
    path.write_bytes(path.read_bytes()[:90])
    with pytest.raises(EOFError, match="the header is damaged"):
        read_variable_ends(path)
