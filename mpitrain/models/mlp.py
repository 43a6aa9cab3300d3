"""A chain of linear layers of any depth.

b  samples      F  input features      H  hidden units      O  outputs
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS
from mpitrain.models.normalized import BlockNetwork


class MlpNetwork(BlockNetwork):
    """`sizes` F, H, ..., O: linear layers, each but the last followed by batch norm, activation and dropout if asked.

    Parameters: layers.0.linear.weight (H, F), layers.0.linear.bias (H,), and so on.
    """

    def __init__(
        self, sizes: Sequence[int], hidden_activation: str, output_activation: str, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(sizes))
        hidden = [_layer(pair, hidden_activation, dropout, batch_norm) for pair in pairs[:-1]]
        self.layers = nn.Sequential(*hidden, _layer(pairs[-1], output_activation, 0.0, False))

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
