"""Network over fields plus a linear map, for few samples: training starts from a linear regression.

b  samples      F  input channels      O  output channels      H, W  rows and columns
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.models.convolutional.cnn import CnnNetwork
from mpitrain.models.convolutional.unet import UNetNetwork
from mpitrain.models.normalized import BlockNetwork


class LinearPartNetwork(BlockNetwork):
    """network(x) + linear(x), both (b, F, H, W) -> (b, O, H, W).

    `linear` maps the inputs at a point to the outputs at the same point. With a `grid` (H, W) each point adds its own
    coefficients, the buffers place_weight (O, F, H, W) and place_bias (O, H, W), which training does not change.
    """

    def __init__(
        self, network: CnnNetwork | UNetNetwork, num_inputs: int, num_outputs: int, grid: Sequence[int] | None
    ) -> None:
        super().__init__()
        self.network = network
        self.linear = nn.Conv2d(num_inputs, num_outputs, 1)
        self.has_places = grid is not None
        rows, columns = grid or (0, 0)
        self.rows, self.columns = rows, columns
        if grid is not None:
            self.register_buffer("place_weight", torch.zeros(num_outputs, num_inputs, rows, columns))
            self.register_buffer("place_bias", torch.zeros(num_outputs, rows, columns))

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the output fields. Raises ValueError if their grid is not the network's grid."""
        outputs: torch.Tensor = self.network(fields) + self.linear(fields)
        if self.has_places:
            if fields.size(2) != self.rows or fields.size(3) != self.columns:
                raise ValueError("the network accepts only the grid of its training data (model.grid)")
            of_places: torch.Tensor = (fields.unsqueeze(1) * self.place_weight).sum(2) + self.place_bias  # type: ignore[operator]
            outputs = outputs + of_places
        return outputs

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """See `BlockNetwork.checkpoint_blocks`."""
        return self.network.checkpoint_blocks()

    @torch.no_grad()
    def begin(self, everywhere: torch.Tensor, here: torch.Tensor | None) -> None:
        """Set the linear map to coefficients `everywhere` (F + 1, O) plus, at each point, `here` (O, F + 1, H, W).

        The constant term comes first; inputs and outputs are normalised. The last layer of `network` is set to 0, so
        that the linear map alone determines the initial outputs.
        """
        self.network.output.weight.zero_()
        self.network.output.bias.zero_()  # type: ignore[union-attr]  # a convolution may have none
        self.linear.weight.copy_(everywhere[1:].T[:, :, None, None])
        self.linear.bias.copy_(everywhere[0])  # type: ignore[union-attr]
        if here is not None:
            self.get_buffer("place_weight").copy_(here[:, 1:])
            self.get_buffer("place_bias").copy_(here[:, 0])
