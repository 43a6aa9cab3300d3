"""Files of torch that hold a dict of tensors."""

from __future__ import annotations

from typing import Literal

from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format


class Pt(Format):
    """Files of torch that hold a dict of tensors."""

    suffixes = SUFFIXES["pt"]
    opener = "mpitrain.data.files.arrays:open_pt"

    type: Literal["pt"] = "pt"
