"""CSV with a line of names, through pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Csv(Format):
    """CSV with a line of names, through pyarrow."""

    suffixes = SUFFIXES["csv"]

    type: Literal["csv"] = "csv"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.tables.columns import open_csv

        return open_csv(path)
