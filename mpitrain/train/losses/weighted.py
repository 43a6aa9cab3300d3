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
    """A loss summed with weights; outputs and targets are divided by `output_std` (O,), unless it is None.

    `target_weights` (O,) multiply the weights of the samples; None: all are 1.
    """

    element_losses: ElementLosses
    output_std: torch.Tensor | None = None
    target_weights: torch.Tensor | None = None

    def sums(self, outputs: torch.Tensor, microbatch: Microbatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of weight * loss over all elements, and the sum of the weights, scalars.

        `outputs` (b, O, ...) must have the shape of `microbatch.targets`.
        """
        weights = self.weights_of(microbatch)
        # A weight that is broadcast over several elements is added once for each of them.
        spread = microbatch.targets.numel() // max(weights.numel(), 1)
        losses = self.element_losses(*self._scaled(outputs, microbatch.targets))
        return (losses * weights).sum(), weights.sum() * spread

    def weights_of(self, microbatch: Microbatch) -> torch.Tensor:
        """Return the weight of each element (b, 1 or O, ...), to be broadcast over the targets."""
        weights: torch.Tensor = microbatch.weights
        return weights if self.target_weights is None else weights * self._along_targets(microbatch)

    def _along_targets(self, microbatch: Microbatch) -> torch.Tensor:
        assert self.target_weights is not None
        return self.target_weights.to(microbatch.weights).view(-1, *[1] * (microbatch.targets.ndim - 2))

    def double_sums(self, outputs: torch.Tensor, microbatch: Microbatch) -> torch.Tensor:
        """Return the two sums of `sums` (2,) in float64, with each loss computed in the outputs' dtype."""
        losses = self.element_losses(*self._scaled(outputs, microbatch.targets)).double()
        weights = self.weights_of(microbatch).double().expand_as(losses)
        return torch.stack([(losses * weights).sum(), weights.sum()])

    def sums_by_target(self, outputs: torch.Tensor, microbatch: Microbatch) -> torch.Tensor:
        """Return the two sums of `sums` for each target (O, 2) in float64."""
        losses = self.element_losses(*self._scaled(outputs, microbatch.targets)).double()
        weights = self.weights_of(microbatch).double().expand_as(losses)
        axes = [axis for axis in range(losses.ndim) if axis != 1]
        return torch.stack([(losses * weights).sum(axes), weights.sum(axes)], dim=1)

    def _scaled(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.output_std is None:
            return outputs, targets
        std = self.output_std.view(-1, *[1] * (targets.ndim - 2))
        return outputs / std, targets / std


def loss_of(loss: Loss, model: nn.Module, target_weights: Sequence[float] = ()) -> WeightedLoss:
    """Return `loss` for `model`: scaled by the standard deviations that normalise the model's outputs, if any.

    `target_weights` (O,) are the weights of the targets; () if all are 1.
    """
    std, element_losses = getattr(model, "output_std", None), loss.build()
    scale = None if std is None or bool((std == 1).all()) else std
    if not target_weights:
        return WeightedLoss(element_losses, scale)
    return WeightedLoss(element_losses, scale, model.get_buffer("input_mean").new_tensor(target_weights))
