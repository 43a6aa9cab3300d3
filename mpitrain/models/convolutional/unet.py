"""U-Net over fields: to coarser and coarser resolution, then back, with skip connections at each level.

b  samples      F  input channels      O  output channels      H, W  rows and columns
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, LayerOptions
from mpitrain.models.convolutional.blocks import convolution_block, wrap_columns
from mpitrain.models.normalized import BlockNetwork


class UNetNetwork(BlockNetwork):
    """U-Net (b, F, H, W) -> (b, O, H, W): `levels` times half the resolution and twice the channels, then back.

    Level 0 has `hidden_size` channels. If H or W is not a multiple of 2^levels, the fields are padded to one (with
    zeros, or with wrapped columns if `periodic`) and the outputs are cropped. With `periodic`, shifting the inputs by a
    multiple of 2^levels columns shifts the outputs equally if W is a multiple of 2^levels; otherwise the outputs
    depend slightly on the position of the first column.
    """

    def __init__(self, num_inputs: int, num_outputs: int, hidden_size: int, levels: int, options: LayerOptions) -> None:
        super().__init__()
        self.multiple, self.periodic = 2**levels, options.periodic

        def block(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(convolution_block(before, after, options), convolution_block(after, after, options))

        widths = [hidden_size * 2**level for level in range(levels + 1)]
        self.entrance = block(num_inputs, widths[0])
        self.down = nn.ModuleList(block(fine, coarse) for fine, coarse in itertools.pairwise(widths))
        steps_up = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, stride=2) for coarse, fine in steps_up)
        self.up = nn.ModuleList(block(2 * fine, fine) for _, fine in steps_up)
        self.output = nn.Conv2d(widths[0], num_outputs, 1)
        self.output_activation = ACTIVATIONS[options.output_activation]()

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the output fields, with the rows and columns of the input."""
        num_rows, num_columns = fields.size(2), fields.size(3)
        current = self.entrance(self._continued(fields))
        finer = [current]
        for block in self.down:
            current = block(nn.functional.avg_pool2d(current, 2))
            finer.append(current)
        finer.pop()
        for widen, block in zip(self.widen, self.up):  # noqa: B905  # TorchScript's zip takes no `strict`
            current = block(torch.cat([finer.pop(), widen(current)], 1))
        outputs: torch.Tensor = self.output_activation(self.output(current))
        return outputs[:, :, :num_rows, :num_columns]

    def _continued(self, fields: torch.Tensor) -> torch.Tensor:
        rows, columns = -fields.size(2) % self.multiple, -fields.size(3) % self.multiple
        if self.periodic and columns > 0:
            fields, columns = wrap_columns(fields, 0, columns), 0
        return nn.functional.pad(fields, [0, columns, 0, rows])

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """See `BlockNetwork.checkpoint_blocks`."""
        return [self.entrance, *self.down, *self.up]
