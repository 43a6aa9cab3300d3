"""TorchScript for C++, with derivatives, names, units and statistics inside."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat


class TorchScript(ExportFormat):
    """TorchScript for C++, with derivatives, names, units and statistics inside."""

    output = "model.pt"
    writer = "mpitrain.export.network:export"

    type: Literal["torchscript"] = "torchscript"
