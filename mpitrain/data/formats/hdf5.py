"""HDF5, through h5py."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Hdf5(Format):
    """HDF5, through h5py."""

    suffixes = SUFFIXES["hdf5"]
    opener = "mpitrain.data.files.hdf5:Hdf5File"

    type: Literal["hdf5"] = "hdf5"
