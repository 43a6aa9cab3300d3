"""NetCDF, classic and NetCDF-4, through netCDF4 and h5py."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Netcdf(Format):
    """NetCDF, classic and NetCDF-4, through netCDF4 and h5py."""

    suffixes = SUFFIXES["netcdf"]
    opener = "mpitrain.data.files.netcdf:NetcdfFile"
    first_bytes = (b"CDF", b"\x89HDF\r\n\x1a\n")

    type: Literal["netcdf"] = "netcdf"

    @classmethod
    def load_libraries(cls) -> None:
        """See `Format.load_libraries`."""
        import h5py  # noqa: F401
        import netCDF4  # noqa: F401
