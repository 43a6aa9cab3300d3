"""NetCDF, classic and NetCDF-4, through netCDF4 and h5py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Netcdf(Format):
    """NetCDF, classic and NetCDF-4, through netCDF4 and h5py."""

    suffixes = SUFFIXES["netcdf"]
    first_bytes = (b"CDF", b"\x89HDF\r\n\x1a\n")

    type: Literal["netcdf"] = "netcdf"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.netcdf import NetcdfFile

        return NetcdfFile(path)

    @classmethod
    def load_libraries(cls) -> None:
        """See `Format.load_libraries`."""
        import h5py  # noqa: F401
        import netCDF4  # noqa: F401
