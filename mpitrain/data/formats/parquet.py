"""Parquet, through pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Parquet(Format):
    """Parquet, through pyarrow."""

    suffixes = SUFFIXES["parquet"]

    type: Literal["parquet"] = "parquet"

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        from mpitrain.data.files.tables.columns import open_parquet

        return open_parquet(path)
