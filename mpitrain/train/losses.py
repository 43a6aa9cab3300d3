"""Loss functions, element by element, so that masks can be weighed out and sums taken in any fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from mpitrain.config import TrainingSection
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
    """A loss summed with weights; errors are measured in `output_std` (O,), or as they are where that is None.

    `target_weights` (O,) multiply the samples' own; None: 1.
    """

    name: str
    output_std: torch.Tensor | None = None
    target_weights: torch.Tensor | None = None

    def sums(self, outputs: torch.Tensor, piece: Slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of weight * loss over all elements, and the sum of the weights, scalars.

        `outputs` (b, O, ...) must have the shape of `piece.targets`.
        """
        weights = self.weights_of(piece)
        # A broadcast weight counts once for each element.
        spread = piece.targets.numel() // max(weights.numel(), 1)
        losses = element_losses(self.name, *self._scaled(outputs, piece.targets))
        return (losses * weights).sum(), weights.sum() * spread

    def weights_of(self, piece: Slice) -> torch.Tensor:
        """Return how much each element counts (b, 1 or O, ...), to be broadcast over targets."""
        return piece.weights if self.target_weights is None else piece.weights * self._along_targets(piece)

    def _along_targets(self, piece: Slice) -> torch.Tensor:
        assert self.target_weights is not None
        return self.target_weights.to(piece.weights).view(-1, *[1] * (piece.targets.ndim - 2))

    def double_sums(self, outputs: torch.Tensor, piece: Slice) -> torch.Tensor:
        """Return the same two sums (2,) in float64, each loss computed in the outputs' dtype."""
        losses = element_losses(self.name, *self._scaled(outputs, piece.targets)).double()
        weights = self.weights_of(piece).double().expand_as(losses)
        return torch.stack([(losses * weights).sum(), weights.sum()])

    def sums_by_target(self, outputs: torch.Tensor, piece: Slice) -> torch.Tensor:
        """Return the same two sums of each target (O, 2) in float64."""
        losses = element_losses(self.name, *self._scaled(outputs, piece.targets)).double()
        weights = self.weights_of(piece).double().expand_as(losses)
        axes = [axis for axis in range(losses.ndim) if axis != 1]
        return torch.stack([(losses * weights).sum(axes), weights.sum(axes)], dim=1)

    def _scaled(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.output_std is None:
            return outputs, targets
        std = self.output_std.view(-1, *[1] * (targets.ndim - 2))
        return outputs / std, targets / std


def loss_of(name: str, model: nn.Module, target_weights: Sequence[float] = ()) -> WeightedLoss:
    """Return the loss `name` for `model`: measured in the deviations that its outputs are normalised by, if any.

    `target_weights` (O,) say how much each target counts, where not all count 1.
    """
    std = getattr(model, "output_std", None)
    scale = None if std is None or bool((std == 1).all()) else std
    if not target_weights:
        return WeightedLoss(name, scale)
    return WeightedLoss(name, scale, model.get_buffer("input_mean").new_tensor(target_weights))


def target_weights_of(training: TrainingSection, target_names: Sequence[str]) -> tuple[float, ...]:
    """Return `training.loss_weights` in the order of the targets; () where all count 1."""
    given = training.loss_weights or {}
    weights = tuple(float(given.get(name, 1.0)) for name in target_names)
    return weights if any(one != 1 for one in weights) else ()
