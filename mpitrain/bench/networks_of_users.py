"""Networks as users write them, for `mpitrain bench step`; given in settings as `package.module:callable`."""

from __future__ import annotations

import torch
from torch import nn

_WIDTH, _NUM_BLOCKS = 64, 2


class Residual(nn.Module):
    """Two blocks x + f(x) of 64 units with SiLU: (b, F) -> (b, O)."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_inputs, _WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_NUM_BLOCKS))
        self.last = nn.Linear(_WIDTH, num_outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + nn.functional.silu(block(hidden))
        outputs: torch.Tensor = self.last(hidden)
        return outputs


class LayerNorm(nn.Sequential):
    """Two layers of 64 units, each with layer norm and relu: (b, F) -> (b, O)."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        layers: list[nn.Module] = []
        for size in (num_inputs, *[_WIDTH] * (_NUM_BLOCKS - 1)):
            layers += [nn.Linear(size, _WIDTH), nn.LayerNorm(_WIDTH), nn.ReLU()]
        super().__init__(*layers, nn.Linear(_WIDTH, num_outputs))
