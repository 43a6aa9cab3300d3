"""`mpitrain export`: a run's network as a file for C++, believed only once it has been read again and compared.

b  samples      F  input features
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, OutputError, UserError
from mpitrain.export.cpp_check import check_from_cpp
from mpitrain.inference.run_weights import describe_run, load_run, load_weights, open_run_data
from mpitrain.models.files.archive import read_archive
from mpitrain.models.files.record import is_rebuilt
from mpitrain.models.files.stored_network import load_network
from mpitrain.models.files.torchscript import (
    check_saved,
    load_and_run_code,
    normalization_path,
    save_model,
    save_normalization,
)
from mpitrain.models.jacobian import input_jacobian

Say = Callable[[str], None]
_MOST_SAMPLES = 4096
_DRAWN_FIELD = (32, 32)


@dataclass(frozen=True)
class ExportRequest:
    """What the command line asks for; see `run_weights.load_weights`.

    `build`: build the C++ program if need be. `trust_code`: build a network of the user's own code.
    """

    run: Path
    output: Path = Path("model.pt")
    weights: str | None = None
    checkpoint: str | None = None
    build: bool = False
    trust_code: bool = False


def export(request: ExportRequest, say: Say) -> None:
    """Export as requested, check what was written, and `say` what was checked. For one process, without MPI.

    Raises UserError, CheckpointError, or OutputError where the file cannot be written or answers otherwise.
    """
    torch.set_num_threads(1)  # the C++ program's bits are those of one thread
    run, config = load_run(request.run, request.trust_code)
    weights = load_weights(run, config, request.weights, request.checkpoint)
    for line in weights.notices:
        say(f"note: {line}")
    source = open_run_data(run, config)
    inputs, what = _sample_inputs(weights.model, source, config)
    _refuse_in_the_way(request)
    save_model(weights.model, request.output, describe_run(run, config, weights.model, source), inputs[:1])
    mean, std = (weights.model.get_buffer(name) for name in ("input_mean", "input_std"))
    save_normalization(mean, std, request.output)
    say(f"{request.output}: {weights.origin}")
    for line in _check(request.output, weights.model, inputs, what):
        say(line)
    say(check_from_cpp(request.output, weights.model, config, source, inputs, request.build))


def _refuse_in_the_way(request: ExportRequest) -> None:
    if request.output.is_dir():
        raise UserError(f"--output {request.output}: is a folder; give a file such as {request.output / 'model.pt'}")


def _sample_inputs(model: nn.Module, source: SampleSource | None, config: RunConfig) -> tuple[torch.Tensor, str]:
    """Return inputs (b, F) or (b, F, H, W) to compare answers for, and in words what they are."""
    mean, std = (model.get_buffer(name) for name in ("input_mean", "input_std"))
    found = _real_inputs(source, mean) if source is not None and len(source.input_names) == len(mean) else None
    if found is not None:
        return found, f"{len(found)} samples of the run's data"
    shape = (64, len(mean), *(_DRAWN_FIELD if config.data.samples == "fields" else ()))
    axes = [-1] + [1] * (len(shape) - 2)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(mean.dtype)
    return drawn * std.view(axes) + mean.view(axes), "64 drawn samples (the run's data is not to be had)"


def _real_inputs(source: SampleSource, mean: torch.Tensor) -> torch.Tensor | None:
    most = _MOST_SAMPLES if source.kind == "points" else 4
    parts: list[torch.Tensor] = []
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            inputs = torch.from_numpy(samples.inputs[np.flatnonzero(valid_rows(samples))]).to(mean.dtype)
            parts.append(torch.where(torch.isfinite(inputs), inputs, mean.view([-1] + [1] * (inputs.dim() - 2))))
            if sum(map(len, parts)) >= most:
                break
    except DataError:
        return None
    finally:
        source.close()
    found = torch.cat(parts)[:most] if parts else torch.empty(0)
    return found if len(found) else None


def _check(path: Path, model: nn.Module, inputs: torch.Tensor, what: str) -> list[str]:
    """Read the files again and compare bit for bit; return what was found equal. Raises OutputError."""
    check_saved(path, model, inputs)
    lines = [f"checked: forward gives the same bits for {what}"]
    loaded = load_and_run_code(path)
    if inputs.dim() == 2:
        _, expected = input_jacobian(model, inputs)
        if not torch.equal(loaded.jac(inputs), expected):
            raise OutputError(f"{path}: jac answers otherwise than the model that was written; write it again")
        lines.append(f"checked: jac gives the same bits for {what}")
    _check_rebuilt(path, model, inputs)
    side = read_archive(normalization_path(path)).tensors
    if not all(
        torch.equal(side[key], model.get_buffer(name)) for key, name in (("0", "input_mean"), ("1", "input_std"))
    ):
        raise OutputError(f"{normalization_path(path)}: holds other statistics than the model; write it again")
    return [*lines, f"checked: {normalization_path(path).name} holds the model's mean and standard deviation"]


def _check_rebuilt(path: Path, model: nn.Module, inputs: torch.Tensor) -> None:
    """Compare with what `predict` makes of the file without its code; a user's own network is nothing but its code."""
    if not is_rebuilt(model):
        return
    with torch.no_grad():
        same = torch.equal(load_network(path).module(inputs), model(inputs))
    if not same:
        raise OutputError(f"{path}: its record describes otherwise than the model that was written; write it again")
