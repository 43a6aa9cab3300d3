"""TorchScript files: what C++ loads. The only place that writes or reads them.

`model.pt` holds a whole model: the C++ `torch::jit::load` runs it, and the original program's `torch::load` finds its
parameters and buffers by name. `normalization.model.pt` holds two tensors named "0" (mean) and "1" (std).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from mpitrain.errors import OutputError

Result = TypeVar("Result")


def save_model(model: nn.Module, path: Path) -> None:
    """Write `model` as TorchScript to `path`, whole or not at all. Raises OutputError when it cannot be written."""
    # Scripted from a CPU copy in evaluation mode: the file must load on any machine.
    scripted = _quietly(lambda: torch.jit.script(_cpu_copy(model)))
    _write(scripted, path)


def save_normalization(mean: torch.Tensor, std: torch.Tensor, model_path: Path) -> Path:
    """Write `mean` (F,) and `std` (F,) to the side file that the C++ program reads; return its path."""
    path = normalization_path(model_path)
    _write(_quietly(lambda: torch.jit.script(_TensorList([mean, std]))), path)
    return path


def normalization_path(model_path: Path) -> Path:
    """Return the side file's path, in the model's own folder."""
    return model_path.with_name(f"normalization.{model_path.name}")


def load_model(path: Path) -> torch.jit.ScriptModule:
    """Read a TorchScript file on the CPU."""
    model: torch.jit.ScriptModule = _quietly(lambda: torch.jit.load(str(path), map_location="cpu"))
    return model


class _TensorList(nn.Module):
    """Tensors named "0", "1", ..., as libtorch's archive names the members of a vector."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(str(number), tensor.detach().cpu().clone())


def _cpu_copy(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).cpu().eval()


def _write(scripted: torch.jit.ScriptModule, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    try:
        _quietly(lambda: torch.jit.save(scripted, str(temporary)))
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written ({error}); check the folder's permissions and space") from error


def _quietly(action: Callable[[], Result]) -> Result:
    # torch announces TorchScript's retirement at each call; C++ programs still need the format.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        return action()
