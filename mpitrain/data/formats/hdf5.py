"""HDF5, through h5py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Hdf5(Format):
    """HDF5, through h5py."""

    suffixes = SUFFIXES["hdf5"]

    type: Literal["hdf5"] = "hdf5"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.hdf5 import Hdf5File

        return Hdf5File(path)
