"""Weights to start from, in a NetCDF file with one variable a parameter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from mpitrain.errors import DataError


def load_initial_weights(model: nn.Module, path: Path) -> None:
    """Set the parameters of `model` from `path`: variables named like the parameters, of the same shapes.

    Raises DataError when the file is missing or not NetCDF, or when a variable is missing, of another shape, or holds
    anything but finite numbers.
    """
    import netCDF4

    if not path.is_file():
        raise DataError(f"{path}: no such file; set model.initial_weights to a NetCDF file of weights")
    try:
        with netCDF4.Dataset(str(path)) as dataset:
            dataset.set_auto_maskandscale(False)
            for name, parameter in model.named_parameters():
                _copy_variable(dataset, path, name, parameter)
    except (OSError, RuntimeError) as error:  # netCDF4 reports a damaged block with either
        raise DataError(f"{path}: cannot be read as NetCDF ({getattr(error, 'strerror', None) or error})") from error


def _copy_variable(dataset: object, path: Path, name: str, parameter: nn.Parameter) -> None:
    variables = dataset.variables  # type: ignore[attr-defined]  # netCDF4 has no annotations
    if name not in variables:
        raise DataError(f"{path}: no variable '{name}'; it has {', '.join(variables) or 'none'}")
    values = np.asarray(variables[name][:])
    if values.shape != tuple(parameter.shape):
        raise DataError(
            f"{path}: variable '{name}' has shape {values.shape}, this model needs "
            f"{tuple(parameter.shape)}; check model.hidden_size"
        )
    if values.dtype.kind not in "fiu":
        raise DataError(f"{path}: variable '{name}' holds {values.dtype}, expected numbers")
    if not np.isfinite(values).all():
        raise DataError(f"{path}: variable '{name}' holds a value that is not finite; write the weights again")
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.array(values)))
