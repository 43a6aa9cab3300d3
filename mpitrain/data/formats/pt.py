"""Files of torch that hold a dict of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Pt(Format):
    """Files of torch that hold a dict of tensors."""

    suffixes = SUFFIXES["pt"]

    type: Literal["pt"] = "pt"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.arrays import open_pt

        return open_pt(path)
