"""Loss functions, element by element, so that masks can be weighed out and sums taken in any fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from mpitrain.data.dataset.batches import Slice


def element_losses(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each element: mse (y - t)^2, mae |y - t|, huber with delta 1 (Huber, 1964); same shape."""
    if name == "mae":
        return functional.l1_loss(outputs, targets, reduction="none")
    if name == "huber":
        return functional.huber_loss(outputs, targets, reduction="none", delta=1.0)
    return functional.mse_loss(outputs, targets, reduction="none")


@dataclass(frozen=True)
class WeightedLoss:
    """A loss summed with weights; errors are measured in `output_std` (O,), or as they are where that is None."""

    name: str
    output_std: torch.Tensor | None = None

    def sums(self, outputs: torch.Tensor, piece: Slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of weight * loss over all elements, and the sum of the weights, scalars.

        `outputs` (b, O, ...) must have the shape of `piece.targets`.
        """
        # A broadcast weight counts once for each element.
        spread = piece.targets.numel() // max(piece.weights.numel(), 1)
        losses = element_losses(self.name, *self._scaled(outputs, piece.targets))
        return (losses * piece.weights).sum(), piece.weights.sum() * spread

    def double_sums(self, outputs: torch.Tensor, piece: Slice) -> torch.Tensor:
        """Return the same two sums (2,) in float64, each loss computed in the outputs' dtype."""
        losses = element_losses(self.name, *self._scaled(outputs, piece.targets)).double()
        weights = piece.weights.double().expand_as(losses)
        return torch.stack([(losses * weights).sum(), weights.sum()])

    def _scaled(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.output_std is None:
            return outputs, targets
        std = self.output_std.view(-1, *[1] * (targets.ndim - 2))
        return outputs / std, targets / std


def loss_of(name: str, model: nn.Module) -> WeightedLoss:
    """Return the loss `name` for `model`: measured in the deviations that its outputs are normalised by, if any."""
    std = getattr(model, "output_std", None)
    return WeightedLoss(name, None if std is None or bool((std == 1).all()) else std)
