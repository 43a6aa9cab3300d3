"""Batch norm's running statistics in memory that the kernel updates.

C  units of a layer
"""

from __future__ import annotations

import torch
from torch import nn

from mpitrain.models.batch_norm import batch_norm_layers


class KernelRunningStatistics:
    """`flat`: running mean and variance (2 C,) of each layer with batch norm, one after the other.

    The layers' buffers become views of it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = batch_norm_layers(model)
        parts = [part for layer in self._layers for part in (layer.running_mean, layer.running_var)]
        self.flat = torch.cat(parts) if parts else torch.zeros(0)
        views = iter(self.flat.split([len(part) for part in parts]))
        for layer in self._layers:
            layer.running_mean, layer.running_var = next(views), next(views)

    def count(self, num_steps: int) -> None:
        """Count the steps that the kernel has taken, as torch's layers do."""
        for layer in self._layers:
            layer.num_batches_tracked += num_steps
