"""ONNX, for onnxruntime and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class Onnx(ExportFormat):
    """ONNX, for onnxruntime and others."""

    output = "model.onnx"

    type: Literal["onnx"] = "onnx"

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        from mpitrain.export.programs import check_onnx, export_program, run_onnx, write_onnx

        check_onnx()
        export_program(request, say, write_onnx, run_onnx)
