"""Conversion between a `DenseModel` and the equivalent torch module, for runs and files that need torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mpitrain.comm import address_of
from mpitrain.models.batch_norm import make_exportable
from mpitrain.models.build import build_model
from mpitrain.models.convolutional.field_model import FieldModel
from mpitrain.models.dense import DenseModel, empty_dense
from mpitrain.models.files.record import architecture_of, engine_of, run_of, store_engine, store_run
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import dense_chain_of
from mpitrain.models.output_transforms import output_transformed_targets, transforms_of

_TORCH = {"float32": torch.float32, "float64": torch.float64}


def module_of(model: DenseModel, shares_memory: bool = False) -> nn.Module:
    """Return a torch module with the numbers of `model`, in training mode; its outputs are the transformed targets.

    `shares_memory`: the module uses the model's arrays, so that later changes of the arrays change the module.
    Raises TypeError if the model was not built from settings.
    """
    if model.settings is None:
        raise TypeError("this network was not built from settings")
    dtype = _TORCH[str(model.dtype)]
    # Not on the device `meta`: drawing initial weights there imports torch's compiler, which takes seconds.
    sizes = model.num_inputs, model.num_outputs
    module = build_model(model.settings, *sizes, 0, dtype, model.transforms)
    arrays = model.state_dict().items()
    tensors = {name: torch.from_numpy(array if shares_memory else array.copy()) for name, array in arrays}
    module.load_state_dict(tensors, assign=True)
    output_transformed_targets(module)
    store_engine(module, model.engine)
    store_run(module, run_of(model))
    return module.train()


def file_module_of(model: DenseModel) -> nn.Module:
    """Return the torch module as stored in files: in evaluation mode, with outputs in physical units."""
    return make_exportable(module_of(model)).eval()


def torch_view(model: Any) -> nn.Module:
    """Return the torch module of a model in training: itself, or one that shares the memory of a `DenseModel`."""
    return module_of(model, shares_memory=True) if isinstance(model, DenseModel) else model


def dense_of(module: nn.Module) -> DenseModel | None:
    """Return a `DenseModel` that shares the memory of a torch module on the CPU.

    Parameters
    ----------
    module : torch.nn.Module
        A model of this package on the CPU.

    Returns
    -------
    DenseModel or None
        Its arrays are the memory of the module's parameters and buffers. None if the network is not a chain of dense
        layers (IceNet or mlp), or is neither float32 nor float64.
    """
    chain = dense_chain_of(module)
    if chain is None:
        return None
    state: dict[str, Any] = module.state_dict()
    if state["input_mean"].dtype not in _TORCH.values():
        return None
    model = empty_dense(chain, isinstance(module, IceNet), "float32")
    model.settings, model.engine, model.transforms = architecture_of(module), engine_of(module), transforms_of(module)
    if set(model.state_dict()) != set(state):
        return None
    for name in model.state_dict():
        target = model.parameters if name in model.parameters else model.buffers
        target[name] = state[name].detach().cpu().numpy()
    return model


def bind(module: nn.Module, model: DenseModel | FieldModel) -> None:
    """Make the parameters and buffers of `module` share the memory of those of `model`."""
    for name, parameter in module.named_parameters():
        parameter.data = torch.from_numpy(model.parameters[name])
    for name, buffer in module.named_buffers():
        buffer.data = torch.from_numpy(model.buffers[name])


class ModuleViews:
    """Torch modules of the networks that are trained one after the other; the last module is cached."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._last: tuple[DenseModel, int, nn.Module] | None = None

    def of(self, trained: Any) -> nn.Module:
        """Return the module of `trained`: itself, or the cached one if a `DenseModel` was reset in the same memory."""
        if not isinstance(trained, DenseModel):
            module: nn.Module = trained
            return module
        address = address_of(next(iter(trained.parameters.values())))
        if self._last is None or self._last[0] is not trained or self._last[1] != address:
            self._last = trained, address, torch_view(trained)
        store_run(self._last[2], run_of(trained))
        return self._last[2]
