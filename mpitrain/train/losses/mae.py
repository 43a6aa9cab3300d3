"""The mean absolute error."""

from __future__ import annotations

from typing import Literal

from mpitrain.train.losses.loss import Array, Loss


class MeanAbsoluteError(Loss):
    """The mean of |y - t|."""

    kernel = "mae"
    functional = "l1_loss"

    type: Literal["mae"] = "mae"
    """Which loss."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "the mean absolute error"

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        return abs(outputs - targets)
