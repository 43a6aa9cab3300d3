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
from mpitrain.models.batch_norm import VirtualBatchNorm
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

    The model's parameters are each layer's weight (out, in) and bias (out,), layer by layer; with batch norm, also a
    hidden layer's scale and offset (out,). `dropout` is the probability of a hidden unit's.
    """

    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    dropout: float = 0.0
    has_batch_norm: bool = False


def dense_chain_of(model: nn.Module) -> DenseChain | None:
    """Describe IceNet or an mlp; None for every other model."""
    if isinstance(model, IceNet):
        sizes = (model.fc1.in_features, model.fc1.out_features, model.fc2.out_features)
        return DenseChain(sizes, activation_name(model.activation), activation_name(model.output_activation))
    if isinstance(model, NormalizedModel) and isinstance(model.network, MlpNetwork):
        return _chain([list(layer.children()) for layer in model.network.layers.children()])
    return None


def _chain(layers: list[list[nn.Module]]) -> DenseChain | None:
    *hidden, last = layers
    first = [type(module) for module in hidden[0]] if hidden else []
    if not hidden or len(last) != 2 or any([type(module) for module in layer] != first for layer in hidden):
        return None
    linear = [layer[0] for layer in layers if isinstance(layer[0], nn.Linear)]
    norm, dropout = (
        next((m for m in hidden[0] if isinstance(m, kind)), None) for kind in (VirtualBatchNorm, nn.Dropout)
    )
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    activation = next(module for module in hidden[0] if isinstance(module, tuple(ACTIVATIONS.values())))
    probability = dropout.p if isinstance(dropout, nn.Dropout) else 0.0
    return DenseChain(sizes, activation_name(activation), activation_name(last[1]), probability, norm is not None)
