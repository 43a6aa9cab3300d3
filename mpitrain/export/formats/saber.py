"""TorchScript as the TorchBalance blocks of JEDI's SABER load it."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat


class Saber(ExportFormat):
    """TorchScript as the TorchBalance blocks of JEDI's SABER load it."""

    output = "emulator.pt"
    writer = "mpitrain.export.saber:export_saber"

    type: Literal["saber"] = "saber"
