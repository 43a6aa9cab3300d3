"""Zarr stores in folders, versions 2 and 3, through zarr-python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Zarr(Format):
    """Zarr stores in folders, versions 2 and 3, through zarr-python."""

    suffixes = SUFFIXES["zarr"]
    marks = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")

    type: Literal["zarr"] = "zarr"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.zarr import ZarrStore

        return ZarrStore(path)
