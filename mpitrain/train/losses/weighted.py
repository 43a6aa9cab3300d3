"""Sums of weighted losses.

b  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from mpitrain.data import Microbatch
from mpitrain.train.losses.loss import ElementLosses, Loss


@dataclass(frozen=True)
class WeightedLoss:
    """A loss summed with weights; errors are measured in `output_std` (O,), or as they are where that is None.

    `target_weights` (O,) multiply the samples' own; None: 1.
    """

    element_losses: ElementLosses
    output_std: torch.Tensor | None = None
    target_weights: torch.Tensor | None = None

    def sums(self, outputs: torch.Tensor, piece: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of weight * loss over all elements, and the sum of the weights, scalars.

        `outputs` (b, O, ...) must have the shape of `piece.targets`.
        """
        weights = self.weights_of(piece)
        # A broadcast weight counts once for each element.
        spread = piece.targets.numel() // max(weights.numel(), 1)
        losses = self.element_losses(*self._scaled(outputs, piece.targets))
        return (losses * weights).sum(), weights.sum() * spread

    def weights_of(self, piece: Microbatch) -> torch.Tensor:
        """Return how much each element counts (b, 1 or O, ...), to be broadcast over targets."""
        weights: torch.Tensor = piece.weights
        return weights if self.target_weights is None else weights * self._along_targets(piece)

    def _along_targets(self, piece: Microbatch) -> torch.Tensor:
        assert self.target_weights is not None
        return self.target_weights.to(piece.weights).view(-1, *[1] * (piece.targets.ndim - 2))

    def double_sums(self, outputs: torch.Tensor, piece: Microbatch) -> torch.Tensor:
        """Return the same two sums (2,) in float64, each loss computed in the outputs' dtype."""
        losses = self.element_losses(*self._scaled(outputs, piece.targets)).double()
        weights = self.weights_of(piece).double().expand_as(losses)
        return torch.stack([(losses * weights).sum(), weights.sum()])

    def sums_by_target(self, outputs: torch.Tensor, piece: Microbatch) -> torch.Tensor:
        """Return the same two sums of each target (O, 2) in float64."""
        losses = self.element_losses(*self._scaled(outputs, piece.targets)).double()
        weights = self.weights_of(piece).double().expand_as(losses)
        axes = [axis for axis in range(losses.ndim) if axis != 1]
        return torch.stack([(losses * weights).sum(axes), weights.sum(axes)], dim=1)

    def _scaled(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.output_std is None:
            return outputs, targets
        std = self.output_std.view(-1, *[1] * (targets.ndim - 2))
        return outputs / std, targets / std


def loss_of(loss: Loss, model: nn.Module, target_weights: Sequence[float] = ()) -> WeightedLoss:
    """Return `loss` for `model`: measured in the deviations that its outputs are normalised by, if any.

    `target_weights` (O,) say how much each target counts, where not all count 1.
    """
    std, element_losses = getattr(model, "output_std", None), loss.build()
    scale = None if std is None or bool((std == 1).all()) else std
    if not target_weights:
        return WeightedLoss(element_losses, scale)
    return WeightedLoss(element_losses, scale, model.get_buffer("input_mean").new_tensor(target_weights))
