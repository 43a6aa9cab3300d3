"""Between a dense model as numbers and torch's module of it, for runs and files that need torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mpitrain.comm import address_of
from mpitrain.models.batch_norm import make_exportable
from mpitrain.models.build import build_model
from mpitrain.models.convolutional.field_model import FieldModel
from mpitrain.models.dense import DenseModel, empty_dense
from mpitrain.models.files.record import architecture_of, engine_of, remember_engine, remember_run, run_of
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import dense_chain_of
from mpitrain.models.output_transforms import answer_as_learnt, transforms_of

_TORCH = {"float32": torch.float32, "float64": torch.float64}


def module_of(model: DenseModel, shares_memory: bool = False) -> nn.Module:
    """Return torch's module with the numbers of `model`, in training mode, answering what is learnt.

    `shares_memory`: the module sees what later changes of the model's arrays make of them.
    """
    if model.settings is None:
        raise TypeError("this network was not built from settings")
    dtype = _TORCH[str(model.dtype)]
    # Not on the device `meta`: there, drawing first weights loads torch's compiler, for seconds.
    sizes = model.num_inputs, model.num_outputs
    module = build_model(model.settings, *sizes, 0, dtype, model.transforms)
    arrays = model.state_dict().items()
    tensors = {name: torch.from_numpy(array if shares_memory else array.copy()) for name, array in arrays}
    module.load_state_dict(tensors, assign=True)
    answer_as_learnt(module)
    remember_engine(module, model.engine)
    remember_run(module, run_of(model))
    return module.train()


def file_module_of(model: DenseModel) -> nn.Module:
    """Return torch's module as files hold it: in evaluation mode, answering in physical units."""
    return make_exportable(module_of(model)).eval()


def torch_view(model: Any) -> nn.Module:
    """Return torch's module of a model in training: itself, or one that shares the memory of a `DenseModel`."""
    return module_of(model, shares_memory=True) if isinstance(model, DenseModel) else model


def dense_of(module: nn.Module) -> DenseModel | None:
    """Return a module's numbers, which it shares, on the CPU; None for a network that is no chain of dense layers."""
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
    """Let the parameters and running statistics of `module` be those of `model`, in the same memory."""
    for name, parameter in module.named_parameters():
        parameter.data = torch.from_numpy(model.parameters[name])
    for name, buffer in module.named_buffers():
        buffer.data = torch.from_numpy(model.buffers[name])


class ModuleViews:
    """Torch's modules of what is trained, one network after the other."""

    def __init__(self) -> None:
        """Know none yet."""
        self._last: tuple[DenseModel, int, nn.Module] | None = None

    def of(self, trained: Any) -> nn.Module:
        """Return the module of `trained`: itself, or the same one for numbers that began again in the same memory."""
        if not isinstance(trained, DenseModel):
            module: nn.Module = trained
            return module
        place = address_of(next(iter(trained.parameters.values())))
        if self._last is None or self._last[0] is not trained or self._last[1] != place:
            self._last = trained, place, torch_view(trained)
        remember_run(self._last[2], run_of(trained))
        return self._last[2]
