"""Chains of linear layers: a network of any depth, and what a compiled step needs to know of one.

b  samples      F  input features      H  hidden units      O  outputs
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, LayerOptions, activation_name
from mpitrain.models.icenet import IceNet
from mpitrain.models.normalized import BlockNetwork, NormalizedModel


class MlpNetwork(BlockNetwork):
    """`sizes` F, H, ..., O: linear layers, each but the last followed by batch norm, activation and dropout if asked.

    Parameters: layers.0.linear.weight (H, F), layers.0.linear.bias (H,), and so on.
    """

    def __init__(self, sizes: Sequence[int], options: LayerOptions) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        hidden = [_layer(pair, options.hidden_activation, options.dropout, options.batch_norm) for pair in pairs[:-1]]
        self.layers = nn.Sequential(*hidden, _layer(pairs[-1], options.output_activation, 0.0, False))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs (b, O) for `inputs` (b, F)."""
        outputs: torch.Tensor = self.layers(inputs)
        return outputs

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """See `BlockNetwork.checkpoint_blocks`."""
        return list(self.layers)


def _layer(sizes: tuple[int, int], activation: str, dropout: float, batch_norm: bool) -> nn.Sequential:
    modules: OrderedDict[str, nn.Module] = OrderedDict(linear=nn.Linear(*sizes))
    if batch_norm:
        modules["norm"] = nn.BatchNorm1d(sizes[1])
    modules["activation"] = ACTIVATIONS[activation]()
    if dropout > 0:
        modules["dropout"] = nn.Dropout(dropout)
    return nn.Sequential(modules)


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
