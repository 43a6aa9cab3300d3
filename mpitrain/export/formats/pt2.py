"""The format of torch.export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class Pt2(ExportFormat):
    """The format of torch.export."""

    output = "model.pt2"

    type: Literal["pt2"] = "pt2"

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        from mpitrain.export.programs import export_program, run_pt2, write_pt2

        export_program(request, say, write_pt2, run_pt2)
