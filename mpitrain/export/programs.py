"""A network, or an ensemble, as a program for other runtimes: torch.export's pt2, and ONNX; read again and compared.

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
from mpitrain.export.networks import load_wanted
from mpitrain.export.request import ExportRequest, Say
from mpitrain.models import EnsembleNetwork, ModelDescription
from mpitrain.models.batch_norm import to_exportable

_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# What a runtime of its own rounds otherwise, relative to the largest answer.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
_DESCRIPTION = "mpitrain.json"


Write = Callable[[nn.Module, torch.Tensor, ModelDescription, Path], None]
Answer = Callable[[Path, torch.Tensor], torch.Tensor]


def export_pt2(request: ExportRequest, say: Say) -> None:
    """Write torch.export's program: see `export_program`."""
    export_program(request, say, write_pt2, run_pt2)


def export_onnx(request: ExportRequest, say: Say) -> None:
    """Write ONNX: see `export_program`. Raises MissingDependencyError where its packages are not installed."""
    check_onnx()
    export_program(request, say, write_onnx, run_onnx)


def export_program(request: ExportRequest, say: Say, write: Write, answer: Answer) -> None:
    """Write a program as requested by `write`, read it again by `answer`, compare, and `say` what was found.

    Raises OutputError where the network cannot be
    exported, the file cannot be written or answers otherwise.
    """
    torch.set_num_threads(1)
    path = request.output_file
    wanted = load_wanted(request, say)
    inputs, description = wanted.inputs, wanted.first.description
    model = to_exportable(_MeanAndSpread(wanted.model) if isinstance(wanted.model, EnsembleNetwork) else wanted.model)
    with torch.no_grad():
        expected = _joined(model(inputs))
    _write_whole(path, lambda partial: write(model, inputs, description, partial))
    say(f"{path}: {wanted.origin}")
    say(_compared(path, answer, inputs, expected, wanted.what))


class _MeanAndSpread(nn.Module):
    """Several networks with two answers: the mean of their predictions, and its standard deviation over networks."""

    def __init__(self, ensemble: EnsembleNetwork) -> None:
        super().__init__()
        self.ensemble = ensemble

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = self.ensemble.member_values(inputs)
        return self.ensemble.mean_of(values), self.ensemble.spread_of(values)


def _joined(answers: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the answers of a program next to each other (b, O ...): one, or mean and spread."""
    return answers if isinstance(answers, torch.Tensor) else torch.cat(list(answers), dim=1)


def check_onnx() -> None:
    """Raise MissingDependencyError where ONNX's packages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in _ONNX_PACKAGES):
        raise MissingDependencyError(f"--format onnx: needs {', '.join(_ONNX_PACKAGES)}; pip install 'mpitrain[onnx]'")


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    unknown = temporary_name(path)
    partial = unknown.with_name(f"{unknown.name}{path.suffix}")  # torch.export insists on the ending
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of things that a user cannot change
            write(partial)
        put_in_place(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); check the folder") from error
    except Exception as error:  # torch's exporters have no common error class; own networks may hold any Python
        line = next((one.strip() for one in str(error).splitlines() if one.strip()), type(error).__name__)
        raise OutputError(f"{path}: the network cannot be exported ({line}); give --format torchscript") from error
    finally:
        partial.unlink(missing_ok=True)


def write_pt2(model: nn.Module, inputs: torch.Tensor, description: ModelDescription, path: Path) -> None:
    """Write torch.export's program of a network, for any number of samples."""
    batch = torch.export.Dim("samples")
    program = torch.export.export(model, (_two(inputs),), dynamic_shapes=({0: batch},))
    torch.export.save(program, str(path), extra_files={_DESCRIPTION: json.dumps(asdict(description))})


def _two(inputs: torch.Tensor) -> torch.Tensor:
    """Return two samples: of one alone the exporter would take the number for part of the network."""
    return torch.cat([inputs[:1], inputs[-1:]])


def run_pt2(path: Path, inputs: torch.Tensor) -> torch.Tensor:
    """Return the answers of a program of torch.export."""
    program: Any = torch.export.load(str(path)).module()
    with torch.no_grad():
        return _joined(program(inputs))


def write_onnx(model: nn.Module, inputs: torch.Tensor, description: ModelDescription, path: Path) -> None:
    """Write ONNX of a network, for any number of samples."""
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
    """Return the answers of onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return _joined([torch.from_numpy(np.asarray(found)) for found in session.run(None, {"inputs": inputs.numpy()})])


def _compared(path: Path, answer: Answer, inputs: torch.Tensor, expected: torch.Tensor, what: str) -> str:
    try:
        found, alone = answer(path, inputs), answer(path, inputs[:1])
    except Exception as error:  # each runtime has errors of its own
        raise OutputError(f"{path}: cannot be used after writing ({error}); report this") from error
    if found.shape != expected.shape or alone.shape != expected[:1].shape:
        raise OutputError(f"{path}: answers in other shapes than the model; report this")
    largest = float(expected.abs().max())
    # Of tensors, not of floats: `max` of floats drops NaN.
    difference = float((torch.cat([found, alone]) - torch.cat([expected, expected[:1]])).abs().max())
    if not difference <= _TOLERANCE[expected.dtype] * max(largest, 1e-30):
        raise OutputError(f"{path}: answers otherwise than the model, by up to {difference:.2g}; report this")
    if torch.equal(found, expected):
        return f"checked: read again, it gives the same bits for {what}"
    return f"checked: read again, it gives the same to {difference:.1g} for {what}"
