"""Chains of linear layers: the network mlp of any depth, and its description for a compiled step.

b  samples      F  input features      H  hidden units      O  outputs
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, LayerOptions, activation_name
from mpitrain.models.batch_norm import VirtualBatchNorm
from mpitrain.models.dense import DenseChain
from mpitrain.models.icenet import IceNet
from mpitrain.models.normalized import BlockNetwork, NormalizedModel


class MlpNetwork(BlockNetwork):
    """Linear layers of `sizes` F, H, ..., O; optional norm, activation and optional dropout after each but the last.

    With `options.residual` each hidden layer after the first is a `ResidualLayer`.

    Parameters: layers.0.linear.weight (H, F), layers.0.linear.bias (H,), and so on.
    """

    def __init__(self, sizes: Sequence[int], options: LayerOptions) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        hidden = [_hidden_layer(pair, options) for pair in pairs[:-1]]
        last = OrderedDict(linear=nn.Linear(*pairs[-1]), activation=ACTIVATIONS[options.output_activation]())
        if options.residual:
            hidden[1:] = [ResidualLayer(OrderedDict(layer.named_children())) for layer in hidden[1:]]
        self.layers = nn.Sequential(*hidden, nn.Sequential(last))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs (b, O) for `inputs` (b, F)."""
        outputs: torch.Tensor = self.layers(inputs)
        return outputs

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """See `BlockNetwork.checkpoint_blocks`."""
        return list(self.layers)


class ResidualLayer(nn.Sequential):
    """Hidden layer with as many units as inputs; the inputs are added to its outputs (He et al., 2016)."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs + layer(inputs), both (b, H)."""
        outputs = inputs
        for module in self:  # not super().forward(): TorchScript does not support it
            outputs = module(outputs)
        return inputs + outputs


def _hidden_layer(sizes: tuple[int, int], options: LayerOptions) -> nn.Sequential:
    modules: OrderedDict[str, nn.Module] = OrderedDict(linear=nn.Linear(*sizes))
    if options.batch_norm:
        modules["norm"] = nn.BatchNorm1d(sizes[1])
    if options.layer_norm:
        modules["norm"] = nn.LayerNorm(sizes[1])
    modules["activation"] = ACTIVATIONS[options.hidden_activation]()
    if options.dropout > 0:
        modules["dropout"] = nn.Dropout(options.dropout)
    return nn.Sequential(modules)


def dense_chain_of(model: nn.Module) -> DenseChain | None:
    """Return the description of IceNet or an mlp; None for every other model."""
    if isinstance(model, IceNet):
        sizes = (model.fc1.in_features, model.fc1.out_features, model.fc2.out_features)
        return DenseChain(sizes, activation_name(model.activation), activation_name(model.output_activation))
    if isinstance(model, NormalizedModel) and isinstance(model.network, MlpNetwork):
        layers = list(model.network.layers.children())
        is_residual = any(isinstance(layer, ResidualLayer) for layer in layers)
        return _chain([list(layer.children()) for layer in layers], is_residual)
    return None


def _chain(layers: list[list[nn.Module]], is_residual: bool) -> DenseChain | None:
    *hidden, last = layers
    first = [type(module) for module in hidden[0]] if hidden else []
    if not hidden or len(last) != 2 or any([type(module) for module in layer] != first for layer in hidden):
        return None
    linear = [layer[0] for layer in layers if isinstance(layer[0], nn.Linear)]
    dropout = next((module for module in hidden[0] if isinstance(module, nn.Dropout)), None)
    has_batch_norm = VirtualBatchNorm in first or nn.BatchNorm1d in first  # the first in training, the second in a file
    has_layer_norm = nn.LayerNorm in first
    sizes = (linear[0].in_features, *(layer.out_features for layer in linear))
    activation = next(module for module in hidden[0] if isinstance(module, tuple(ACTIVATIONS.values())))
    probability = 0.0 if dropout is None else dropout.p
    names = activation_name(activation), activation_name(last[1])
    return DenseChain(sizes, *names, probability, has_batch_norm, has_layer_norm, is_residual)
