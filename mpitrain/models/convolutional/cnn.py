"""A stack of convolutions over fields.

b  samples      F  input channels      O  output channels      H, W  rows and columns
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, LayerOptions
from mpitrain.models.convolutional.blocks import convolution_block
from mpitrain.models.normalized import BlockNetwork


class CnnNetwork(BlockNetwork):
    """`hidden_layers` convolutions with `hidden_size` channels, then a 1 x 1 one: (b, F, H, W) -> (b, O, H, W)."""

    def __init__(
        self, num_inputs: int, num_outputs: int, hidden_size: int, hidden_layers: int, options: LayerOptions
    ) -> None:
        super().__init__()
        widths = [num_inputs] + [hidden_size] * hidden_layers
        self.blocks = nn.Sequential(
            *(convolution_block(before, after, options) for before, after in itertools.pairwise(widths))
        )
        self.output = nn.Conv2d(hidden_size, num_outputs, 1)
        self.output_activation = ACTIVATIONS[options.output_activation]()

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the output fields, with the rows and columns of the input."""
        outputs: torch.Tensor = self.output_activation(self.output(self.blocks(fields)))
        return outputs

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """See `BlockNetwork.checkpoint_blocks`."""
        return list(self.blocks)
