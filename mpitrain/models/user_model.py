"""Checks of a network that named code made: what it is, and what it answers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mpitrain.config.named_code import NamedCode
from mpitrain.models.normalized import NormalizedModel


def check_answers(name: str, model: nn.Module, inputs: torch.Tensor, num_outputs: int) -> None:
    """Try `model` on a few `inputs` (b, F) or (b, F, H, W) before training starts; changes nothing.

    Raises ConfigError, naming model.name, when it fails on them or answers in another shape than (b, O[, H, W]).
    """
    code = NamedCode("model.name", name)
    # The network itself: after it, a missing axis may be hidden by broadcasting.
    network = model.network if isinstance(model, NormalizedModel) else model
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            answer = code.run(
                lambda: network(inputs), f"its forward fails on inputs of shape {tuple(inputs.shape)}",
                "data.samples says what a sample is",
            )  # fmt: skip
    finally:
        model.train(was_training)
    expected = (len(inputs), num_outputs, *inputs.shape[2:])
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != expected:
        found = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise code.error(f"for inputs of shape {tuple(inputs.shape)} it returns {found}; return shape {expected}")


def check_network(code: NamedCode, call: str, network: object) -> None:
    """Raise ConfigError where what `call` returned is no module that can be trained."""
    if not isinstance(network, nn.Module):
        raise code.error(f"{call} returned {type(network).__name__}; return a torch.nn.Module")
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise code.error(f"{call} has no parameters to train; return a torch.nn.Module with layers")
    if any(map(is_lazy, parameters)):
        raise code.error(f"{call} has lazy layers; give each layer its size")
    if any(getattr(module, "track_running_stats", True) is False for module in network.modules()):
        raise code.error(f"{call} has a norm layer with track_running_stats=False; leave that argument out")
