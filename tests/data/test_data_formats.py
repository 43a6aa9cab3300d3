"""One table of numbers in each format that the README names: the same samples, bit for bit."""

from __future__ import annotations

from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import torch
from field_files import config_of, read_all, write_netcdf
from user_files import store_array

from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of

NUM_ROWS = 7
COLUMNS = {
    "x": np.linspace(-3, 5, NUM_ROWS, dtype=np.float32) ** 3,
    "y": np.float32(1) / np.arange(1, NUM_ROWS + 1, dtype=np.float32),
}


def write_netcdf_4(path: Path) -> None:
    write_netcdf(path, {name: (("row",), values) for name, values in COLUMNS.items()})


def write_netcdf_3(path: Path) -> None:
    with netCDF4.Dataset(str(path), "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("row", NUM_ROWS)
        for name, values in COLUMNS.items():
            file.createVariable(name, "f4", ("row",))[:] = values


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.update(COLUMNS)


def write_numpy(path: Path) -> None:
    np.savez(path, **COLUMNS)


def write_torch(path: Path) -> None:
    torch.save({name: torch.from_numpy(values) for name, values in COLUMNS.items()}, path)


def write_csv(path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = zip(*COLUMNS.values(), strict=True)
    path.write_text("\n".join(["x,y", *(",".join(f"{value:.9g}" for value in row) for row in rows)]) + "\n")


def write_parquet(path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(COLUMNS), str(path))


def write_zarr(path: Path, version: int) -> None:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    for name, values in COLUMNS.items():
        store_array(group, version, name, ("row",), values, {})


FORMATS = {
    "netcdf4.nc": write_netcdf_4,
    "netcdf3.nc": write_netcdf_3,
    "hdf5.h5": write_hdf5,
    "numpy.npz": write_numpy,
    "torch.pt": write_torch,
    "table.csv": write_csv,
    "table.parquet": write_parquet,
    "zarr2.zarr": lambda path: write_zarr(path, 2),
    "zarr3.zarr": lambda path: write_zarr(path, 3),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_numbers_that_were_written(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    samples = read_all(open_source(selection_of(config_of(tmp_path / name))))
    assert samples.inputs[:, 0].astype(np.float32).tobytes() == COLUMNS["x"].tobytes()
    assert samples.targets[:, 0].astype(np.float32).tobytes() == COLUMNS["y"].tobytes()
