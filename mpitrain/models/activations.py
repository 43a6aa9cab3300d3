"""How layers are made, by the names of the configuration: the functions after them, and what all layers share."""

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
    """Return the configuration's name of an activation made from `ACTIVATIONS`."""
    return next(name for name, kind in ACTIVATIONS.items() if type(module) is kind)


@dataclass(frozen=True)
class LayerOptions:
    """What the layers of one network share.

    `kernel_size` and `periodic` concern convolutions only, `layer_norm` and `residual` an mlp.
    """

    hidden_activation: str
    output_activation: str
    dropout: float
    batch_norm: bool
    layer_norm: bool = False
    residual: bool = False
    kernel_size: int = 3
    periodic: bool = False
