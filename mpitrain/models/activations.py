"""The functions after layers, by their names in the configuration."""

from __future__ import annotations

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
}


def activation_name(module: nn.Module) -> str:
    """Return the configuration's name of an activation made from `ACTIVATIONS`."""
    return next(name for name, kind in ACTIVATIONS.items() if type(module) is kind)
