"""Export of a network, or an ensemble, for other runtimes: torch.export's pt2, and ONNX; read again and compared.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mpitrain.durable_files import put_in_place, temporary_name
from mpitrain.errors import MissingDependencyError, OutputError
from mpitrain.export.networks import load_networks
from mpitrain.export.request import ExportRequest, Say
from mpitrain.models import EnsembleNetwork, ModelDescription
from mpitrain.models.batch_norm import to_exportable

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Allowed difference in rounding between runtimes, relative to the largest output.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
_DESCRIPTION = "mpitrain.json"


Write = Callable[[nn.Module, torch.Tensor, ModelDescription, Path], None]
Answer = Callable[[Path, torch.Tensor], torch.Tensor]


def export_pt2(request: ExportRequest, say: Say) -> None:
    """Write a pt2 program of torch.export: see `export_program`."""
    export_program(request, say, write_pt2, run_pt2)


def export_onnx(request: ExportRequest, say: Say) -> None:
    """Write ONNX: see `export_program`. Raises MissingDependencyError if its packages are not installed."""
    check_onnx()
    export_program(request, say, write_onnx, run_onnx)


def export_program(request: ExportRequest, say: Say, write: Write, answer: Answer) -> None:
    """Write the requested program with `write`, run it with `answer`, compare, and `say` the result.

    Raises OutputError if the network cannot be exported, the file cannot be written, or its outputs differ from the
    network's.
    """
    torch.set_num_threads(1)
    path = request.output_file
    wanted = load_networks(request, say)
    inputs, description = wanted.inputs, wanted.first.description
    model = to_exportable(_MeanAndSpread(wanted.model) if isinstance(wanted.model, EnsembleNetwork) else wanted.model)
    with torch.no_grad():
        expected = _joined(model(inputs))
    _write_whole(path, lambda partial: write(model, inputs, description, partial))
    say(f"{path}: {wanted.origin}")
    say(_compared(path, answer, inputs, expected, wanted.what))


class _MeanAndSpread(nn.Module):
    """Several networks with two outputs: the mean of their predictions, and the standard deviation over networks."""

    def __init__(self, ensemble: EnsembleNetwork) -> None:
        super().__init__()
        self.ensemble = ensemble

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = self.ensemble.member_values(inputs)
        return self.ensemble.mean_of(values), self.ensemble.spread_of(values)


def _joined(answers: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the outputs of a program, or its mean and spread, concatenated along dimension 1 (b, O ...)."""
    return answers if isinstance(answers, torch.Tensor) else torch.cat(list(answers), dim=1)


def check_onnx() -> None:
    """Raise MissingDependencyError if ONNX's packages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in _ONNX_PACKAGES):
        raise MissingDependencyError(f"--format onnx: needs {', '.join(_ONNX_PACKAGES)}; pip install 'mpitrain[onnx]'")


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    unknown = temporary_name(path)
    partial = unknown.with_name(f"{unknown.name}{path.suffix}")  # torch.export requires the file extension
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about things that a user cannot change
            write(partial)
        put_in_place(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); check the folder") from error
    except Exception as error:  # torch's exporters have no common error class; a user's network may be any Python
        line = next((one.strip() for one in str(error).splitlines() if one.strip()), type(error).__name__)
        raise OutputError(f"{path}: the network cannot be exported ({line}); give --format torchscript") from error
    finally:
        partial.unlink(missing_ok=True)


def write_pt2(model: nn.Module, inputs: torch.Tensor, description: ModelDescription, path: Path) -> None:
    """Write a network as a pt2 program that accepts any number of samples."""
    batch = torch.export.Dim("samples")
    program = torch.export.export(model, (_two(inputs),), dynamic_shapes=({0: batch},))
    torch.export.save(program, str(path), extra_files={_DESCRIPTION: json.dumps(asdict(description))})


def _two(inputs: torch.Tensor) -> torch.Tensor:
    """Return two samples: with only one, the exporter would fix the number of samples at 1."""
    return torch.cat([inputs[:1], inputs[-1:]])


def run_pt2(path: Path, inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a pt2 program of torch.export."""
    program: Any = torch.export.load(str(path)).module()
    with torch.no_grad():
        return _joined(program(inputs))


def write_onnx(model: nn.Module, inputs: torch.Tensor, description: ModelDescription, path: Path) -> None:
    """Write a network as ONNX that accepts any number of samples."""
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    batch = torch.export.Dim("samples")
    program: Any = torch.onnx.export(
        model, (_two(inputs),), dynamo=True, dynamic_shapes=({0: batch},), input_names=["inputs"],
        output_names=["outputs", "spread"] if isinstance(model, _MeanAndSpread) else ["outputs"], verbose=False,
    )  # fmt: skip
    stored = program.model_proto
    stored.producer_name = "mpitrain onnx"
    for key, values in asdict(description).items():
        stored.metadata_props.add(key=key, value=json.dumps(values))
    onnx.save(stored, str(path))


def run_onnx(path: Path, inputs: torch.Tensor) -> torch.Tensor:
    """Return the outputs of an ONNX file, computed by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return _joined([torch.from_numpy(np.asarray(found)) for found in session.run(None, {"inputs": inputs.numpy()})])


def _compared(path: Path, answer: Answer, inputs: torch.Tensor, expected: torch.Tensor, what: str) -> str:
    try:
        found, alone = answer(path, inputs), answer(path, inputs[:1])
    except Exception as error:  # each runtime has its own error classes
        raise OutputError(f"{path}: cannot be used after writing ({error}); report this") from error
    if found.shape != expected.shape or alone.shape != expected[:1].shape:
        raise OutputError(f"{path}: its outputs have other shapes than the model's; report this")
    largest = float(expected.abs().max())
    # With tensors: their maximum keeps NaN, which `max` of floats may drop.
    difference = float((torch.cat([found, alone]) - torch.cat([expected, expected[:1]])).abs().max())
    if not difference <= _TOLERANCE[expected.dtype] * max(largest, 1e-30):
        raise OutputError(f"{path}: its outputs differ from the model's by up to {difference:.2g}; report this")
    if torch.equal(found, expected):
        return f"checked: read again, it gives the same bits for {what}"
    return f"checked: read again, it agrees to {difference:.1g} for {what}"
