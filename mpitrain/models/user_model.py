"""Checks of a network from named code: its type and parameters, and the shape of its outputs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mpitrain.config.named_code import NamedCode
from mpitrain.models.normalized import NormalizedModel


def check_answers(name: str, model: nn.Module, inputs: torch.Tensor, num_outputs: int) -> None:
    """Run `model` on a few `inputs` (b, F) or (b, F, H, W), in evaluation mode, before training starts.

    Raises ConfigError, naming model.name, if it fails or its outputs do not have the shape (b, O[, H, W]).
    """
    code = NamedCode("model.name", name)
    # The network alone: broadcasting in the normalisation of outputs could hide a missing dimension.
    network = model.network if isinstance(model, NormalizedModel) else model
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            answer = code.run(
                lambda: network(inputs), f"its forward fails on inputs of shape {tuple(inputs.shape)}",
                "data.samples sets whether a sample is a point or a field",
            )  # fmt: skip
    finally:
        model.train(was_training)
    expected = (len(inputs), num_outputs, *inputs.shape[2:])
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != expected:
        found = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise code.error(f"for inputs of shape {tuple(inputs.shape)} it returns {found}; return shape {expected}")


def check_network(code: NamedCode, call: str, network: object) -> None:
    """Raise ConfigError if `network`, which `call` returned, is not a module that can be trained."""
    if not isinstance(network, nn.Module):
        raise code.error(f"{call} returned {type(network).__name__}; return a torch.nn.Module")
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise code.error(f"{call} has no parameters to train; return a torch.nn.Module with layers")
    if any(map(is_lazy, parameters)):
        raise code.error(f"{call} has lazy layers; give each layer its size")
    if any(getattr(module, "track_running_stats", True) is False for module in network.modules()):
        raise code.error(f"{call} has a norm layer with track_running_stats=False; leave that argument out")
