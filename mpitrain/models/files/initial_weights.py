"""Initial weights from a file: NetCDF with one variable per parameter, or a model.pt."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mpitrain.errors import DataError, one_line, reason_of
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.models.files.archive import read_archive

_TORCH_SUFFIXES = (".pt", ".pth")


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """Set the parameters of `model` from `path`; names and shapes in the file must be those of the model.

    A model.pt (TorchScript, recognised by its suffix or content) also sets the running statistics of batch norm. The
    normalisation of `model` does not change. Raises DataError if the file is missing or of neither kind, or if a
    parameter is missing, has another shape, or contains anything but finite numbers. No code in the file is run.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; set model.initial_weights to a NetCDF file of weights or a model.pt")
    if path.suffix in _TORCH_SUFFIXES or zipfile.is_zipfile(path):
        _load_torchscript(model, path)
    else:
        _load_netcdf(model, path)


def _load_netcdf(model: nn.Module, path: Path) -> None:
    import netCDF4

    try:
        with netCDF4.Dataset(str(path)) as dataset:
            dataset.set_auto_maskandscale(False)
            for name, parameter in model.named_parameters():
                _check_present(path, "variable", name, dataset.variables)
                _copy(path, "variable", name, np.asarray(dataset[name][:]), parameter)
    except DataError:
        raise
    except Exception as error:  # netCDF4 raises exceptions of many types for a damaged file
        raise DataError(f"{path}: cannot be read as NetCDF ({reason_of(error)})") from error


def _load_torchscript(model: nn.Module, path: Path) -> None:
    try:
        stored = read_archive(path).tensors
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: is not a TorchScript file, or a damaged one ({error}; pickled weights are not read, they can run "
            "code); give the model.pt of a run, or NetCDF"
        ) from error
    for name, target in _learnt(model):
        _check_present(path, "tensor", name, stored)
        _copy(path, "tensor", name, _to_numpy(stored[name]), target)


def _to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    # numpy has no bfloat16
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _learnt(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    layers = batch_norm_layers(model)
    names = {id(buffer) for layer in layers for buffer in layer.buffers()}
    yield from ((name, buffer) for name, buffer in model.named_buffers() if id(buffer) in names)


def _check_present(path: Path, kind: str, name: str, present: Iterable[str]) -> None:
    if name not in present:
        raise DataError(f"{path}: no {kind} '{name}'; it has {one_line(', '.join(present)) or 'none'}")


def _copy(path: Path, kind: str, name: str, values: npt.NDArray[Any], target: torch.Tensor) -> None:
    if values.shape != tuple(target.shape):
        raise DataError(
            f"{path}: {kind} '{name}' has shape {values.shape}, this model needs "
            f"{tuple(target.shape)}; check model.hidden_size"
        )
    if values.dtype.kind not in "fiu":
        raise DataError(f"{path}: {kind} '{name}' has type {values.dtype}, expected numbers")
    if not np.isfinite(values).all():
        raise DataError(f"{path}: {kind} '{name}' contains a value that is not finite; write the weights again")
    with torch.no_grad():
        target.copy_(torch.from_numpy(np.array(values)))
