"""Export of the network of a run, or of an ensemble, as TorchScript for C++. The file is read again and compared.

b  samples      F  input features
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from mpitrain.errors import OutputError
from mpitrain.export.cpp_check import check_from_cpp
from mpitrain.export.networks import load_networks
from mpitrain.export.request import ExportRequest, Say
from mpitrain.models import input_jacobian, is_rebuilt, save_model, save_normalization
from mpitrain.models.files.archive import read_archive
from mpitrain.models.files.stored_network import load_network
from mpitrain.models.files.torchscript import check_saved, load_and_run_code, normalization_path


def export(request: ExportRequest, say: Say) -> None:
    """Write TorchScript as requested, check it, and `say` what was checked. For one process, without MPI.

    Raises UserError, CheckpointError, or OutputError if the file cannot be written or gives other results.
    """
    torch.set_num_threads(1)  # the C++ program computes with one thread; others change the bits
    wanted, output = load_networks(request, say), request.output_file
    model = wanted.model
    save_model(model, output, wanted.first.description, wanted.inputs[:1])
    if not wanted.is_ensemble:
        save_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), output)
    say(f"{output}: {wanted.origin}")
    for line in (_check_ensemble if wanted.is_ensemble else _check)(output, model, wanted.inputs, wanted.what):
        say(line)
    say(check_from_cpp(output, model, wanted.first.config, wanted.first.source, wanted.inputs, request.build))


def _check_ensemble(path: Path, model: nn.Module, inputs: torch.Tensor, what: str) -> list[str]:
    """Do as `_check`, for the mean and spread of several networks."""
    check_saved(path, model, inputs)
    loaded = load_and_run_code(path)
    names = ("spread", "jac", "jac_spread") if inputs.dim() == 2 else ("spread",)
    with torch.no_grad():
        for name in names:
            if not torch.equal(getattr(loaded, name)(inputs), getattr(model, name)(inputs)):
                raise OutputError(f"{path}: {name} differs from that of the networks that were written; write it again")
    return [f"checked: forward, {', '.join(names)} give the same bits for {what}"]


def _check(path: Path, model: nn.Module, inputs: torch.Tensor, what: str) -> list[str]:
    """Read the files again and compare bit for bit; return a line for each comparison. Raises OutputError."""
    check_saved(path, model, inputs)
    lines = [f"checked: forward gives the same bits for {what}"]
    loaded = load_and_run_code(path)
    if inputs.dim() == 2:
        _, expected = input_jacobian(model, inputs)
        if not torch.equal(loaded.jac(inputs), expected):
            raise OutputError(f"{path}: jac differs from that of the model that was written; write it again")
        lines.append(f"checked: jac gives the same bits for {what}")
    _check_rebuilt(path, model, inputs)
    side = read_archive(normalization_path(path)).tensors
    if not all(
        torch.equal(side[key], model.get_buffer(name)) for key, name in (("0", "input_mean"), ("1", "input_std"))
    ):
        raise OutputError(f"{normalization_path(path)}: holds other statistics than the model; write it again")
    return [*lines, f"checked: {normalization_path(path).name} holds the model's mean and standard deviation"]


def _check_rebuilt(path: Path, model: nn.Module, inputs: torch.Tensor) -> None:
    """Compare with the network that `predict` rebuilds from the file's record; a user's own network has no record."""
    if not is_rebuilt(model):
        return
    with torch.no_grad():
        same = torch.equal(load_network(path).module(inputs), model(inputs))
    if not same:
        raise OutputError(
            f"{path}: the network rebuilt from its record differs from the model that was written; write it again"
        )
