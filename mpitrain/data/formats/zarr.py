"""Zarr stores in folders, versions 2 and 3, through zarr-python."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Zarr(Format):
    """Zarr stores in folders, versions 2 and 3, through zarr-python."""

    suffixes = SUFFIXES["zarr"]
    opener = "mpitrain.data.files.zarr:ZarrStore"
    marks = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")

    type: Literal["zarr"] = "zarr"
