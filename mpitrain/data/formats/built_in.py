"""Built-in formats of data files."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats.format import Format


class Netcdf(Format):
    """NetCDF, classic and NetCDF-4, through netCDF4 and h5py."""

    opener = "mpitrain.data.files.netcdf:NetcdfFile"
    first_bytes = (b"CDF", b"\x89HDF\r\n\x1a\n")

    type: Literal["netcdf"] = "netcdf"

    @classmethod
    def load_libraries(cls) -> None:
        """See `Format.load_libraries`."""
        import h5py  # noqa: F401
        import netCDF4  # noqa: F401


class Hdf5(Format):
    """HDF5, through h5py."""

    opener = "mpitrain.data.files.hdf5:Hdf5File"

    type: Literal["hdf5"] = "hdf5"


class Zarr(Format):
    """Zarr stores in folders, versions 2 and 3, through zarr-python."""

    opener = "mpitrain.data.files.zarr:ZarrStore"
    marks = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")

    type: Literal["zarr"] = "zarr"


class Npz(Format):
    """Archives of numpy arrays."""

    opener = "mpitrain.data.files.arrays:open_npz"
    first_bytes = (b"PK\x03\x04",)

    type: Literal["npz"] = "npz"


class Pt(Format):
    """Files of torch with a dict of tensors."""

    opener = "mpitrain.data.files.arrays:open_pt"

    type: Literal["pt"] = "pt"


class Csv(Format):
    """CSV whose first line names the columns, through pyarrow."""

    opener = "mpitrain.data.files.tables.columns:open_csv"

    type: Literal["csv"] = "csv"


class Parquet(Format):
    """Parquet, through pyarrow."""

    opener = "mpitrain.data.files.tables.columns:open_parquet"

    type: Literal["parquet"] = "parquet"
