"""Convolutions that keep the shape of a field; longitudes may wrap around.

b  samples      C  channels      H, W  rows (latitudes) and columns (longitudes)
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, LayerOptions


class FieldConvolution(nn.Module):
    """Convolution (b, C, H, W) -> (b, C', H, W), padded with zeros, or in W with wrapped columns if `periodic`."""

    def __init__(self, num_inputs: int, num_outputs: int, kernel_size: int, periodic: bool) -> None:
        super().__init__()
        margin = kernel_size // 2
        self.wrapped_columns = margin if periodic else 0
        self.convolution = nn.Conv2d(num_inputs, num_outputs, kernel_size, padding=(margin, 0 if periodic else margin))

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        """Return the convolved fields."""
        if self.wrapped_columns > 0:
            fields = wrap_columns(fields, self.wrapped_columns, self.wrapped_columns)
        convolved: torch.Tensor = self.convolution(fields)
        return convolved


def wrap_columns(fields: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """Return `fields` (b, C, H, W) padded with `left` and `right` wrapped columns, which may exceed the width."""
    width = fields.size(3)
    columns = torch.arange(-left, width + right, device=fields.device).remainder(width)
    return fields.index_select(3, columns)


def convolution_block(num_inputs: int, num_outputs: int, options: LayerOptions) -> nn.Sequential:
    """Return a convolution, optional batch norm, activation, and optional dropout of whole channels."""
    modules: OrderedDict[str, nn.Module] = OrderedDict(
        field=FieldConvolution(num_inputs, num_outputs, options.kernel_size, options.periodic)
    )
    if options.batch_norm:
        modules["norm"] = nn.BatchNorm2d(num_outputs)
    modules["activation"] = ACTIVATIONS[options.hidden_activation]()
    if options.dropout > 0:
        modules["dropout"] = nn.Dropout2d(options.dropout)
    return nn.Sequential(modules)
