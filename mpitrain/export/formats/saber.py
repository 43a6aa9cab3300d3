"""TorchScript as the TorchBalance blocks of JEDI's SABER load it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class Saber(ExportFormat):
    """TorchScript as the TorchBalance blocks of JEDI's SABER load it."""

    output = "emulator.pt"

    type: Literal["saber"] = "saber"

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        from mpitrain.export.saber import export_saber

        export_saber(request, say)
