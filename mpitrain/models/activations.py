"""Activations by their names in the configuration, and the options that all layers of a network share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


def activation_name(module: nn.Module) -> str:
    """Return the name in the configuration of an activation module of `ACTIVATIONS`."""
    return next(name for name, kind in ACTIVATIONS.items() if type(module) is kind)


@dataclass(frozen=True)
class LayerOptions:
    """Options that all layers of one network share.

    `kernel_size` and `periodic` apply to convolutions only, `layer_norm` and `residual` to an mlp only.
    """

    hidden_activation: str
    output_activation: str
    dropout: float
    batch_norm: bool
    layer_norm: bool = False
    residual: bool = False
    kernel_size: int = 3
    periodic: bool = False
