"""The format of torch.export."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat


class Pt2(ExportFormat):
    """The format of torch.export."""

    output = "model.pt2"
    writer = "mpitrain.export.programs:export_pt2"

    type: Literal["pt2"] = "pt2"
