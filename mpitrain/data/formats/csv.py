"""CSV with a line of names, through pyarrow."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Csv(Format):
    """CSV with a line of names, through pyarrow."""

    suffixes = SUFFIXES["csv"]
    opener = "mpitrain.data.files.tables.columns:open_csv"

    type: Literal["csv"] = "csv"
