"""Parquet, through pyarrow."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Parquet(Format):
    """Parquet, through pyarrow."""

    suffixes = SUFFIXES["parquet"]
    opener = "mpitrain.data.files.tables.columns:open_parquet"

    type: Literal["parquet"] = "parquet"
