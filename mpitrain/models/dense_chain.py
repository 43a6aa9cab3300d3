"""What a compiled step needs to know of a network that is linear layers only."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from mpitrain.models.activations import ACTIVATIONS, activation_name
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import MlpNetwork
from mpitrain.models.normalized import NormalizedModel


@dataclass(frozen=True)
class DenseChain:
    """Linear layers of `sizes` F, H, ..., O; activations by their names in the configuration.

    The model's parameters are each layer's weight (out, in) and bias (out,), layer by layer.
    """

    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str


def dense_chain_of(model: nn.Module) -> DenseChain | None:
    """Describe IceNet, or an mlp without dropout and batch norm; None for every other model."""
    if isinstance(model, IceNet):
        sizes = (model.fc1.in_features, model.fc1.out_features, model.fc2.out_features)
        return DenseChain(sizes, activation_name(model.activation), activation_name(model.output_activation))
    if isinstance(model, NormalizedModel) and isinstance(model.network, MlpNetwork):
        return _chain([list(layer.children()) for layer in model.network.layers.children()])
    return None


def _chain(layers: list[list[nn.Module]]) -> DenseChain | None:
    linear = [layer[0] for layer in layers if isinstance(layer[0], nn.Linear)]
    plain = all(len(layer) == 2 and isinstance(layer[1], tuple(ACTIVATIONS.values())) for layer in layers)
    if not plain or len(linear) < 2:
        return None
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    return DenseChain(sizes, activation_name(layers[0][1]), activation_name(layers[-1][1]))
