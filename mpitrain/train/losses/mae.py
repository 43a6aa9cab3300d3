"""The mean absolute error."""

from __future__ import annotations

from typing import Literal

from mpitrain.train.losses.loss import Array, ElementLosses, Loss


class MeanAbsoluteError(Loss):
    """The mean of |y - t|."""

    kernel = "mae"

    type: Literal["mae"] = "mae"
    """Which loss."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "the mean absolute error"

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        return abs(outputs - targets)

    def build(self) -> ElementLosses:
        """See `Loss.build`."""
        from torch.nn.functional import l1_loss

        return lambda outputs, targets: l1_loss(outputs, targets, reduction="none")
