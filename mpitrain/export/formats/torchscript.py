"""TorchScript for C++, with derivatives, names, units and statistics inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class TorchScript(ExportFormat):
    """TorchScript for C++, with derivatives, names, units and statistics inside."""

    output = "model.pt"

    type: Literal["torchscript"] = "torchscript"

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        from mpitrain.export.network import export

        export(request, say)
