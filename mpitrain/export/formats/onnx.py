"""ONNX, for onnxruntime and others."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat


class Onnx(ExportFormat):
    """ONNX, for onnxruntime and others."""

    output = "model.onnx"
    writer = "mpitrain.export.programs:export_onnx"

    type: Literal["onnx"] = "onnx"
