"""Archives of numpy arrays."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Npz(Format):
    """Archives of numpy arrays."""

    suffixes = SUFFIXES["npz"]
    opener = "mpitrain.data.files.arrays:open_npz"
    first_bytes = (b"PK\x03\x04",)

    type: Literal["npz"] = "npz"
