"""Archives of numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Npz(Format):
    """Archives of numpy arrays."""

    suffixes = SUFFIXES["npz"]
    first_bytes = (b"PK\x03\x04",)

    type: Literal["npz"] = "npz"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.arrays import open_npz

        return open_npz(path)
