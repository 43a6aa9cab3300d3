"""Huber's loss (Huber, 1964), with delta 1."""

from __future__ import annotations

from typing import Literal

from mpitrain.train.losses.loss import Array, Loss


class HuberLoss(Loss):
    """Half of (y - t)^2 where |y - t| is below 1, else |y - t| - 1/2."""

    kernel = "huber"
    functional = "huber_loss"

    type: Literal["huber"] = "huber"
    """Which loss."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "Huber's loss"

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        import numpy as np

        size = np.abs(outputs - targets)
        half = size.dtype.type(0.5)
        losses: Array = np.where(size < 1, half * size * size, size - half)
        return losses
