"""The built-in losses."""

from __future__ import annotations

from typing import ClassVar, Literal

from mpitrain.train.losses.loss import Array, Loss


class MeanSquaredError(Loss):
    """The mean of (y - t)^2."""

    kernel = "mse"
    functional = "mse_loss"
    described_as = "the mean squared error"
    is_squared_error = True
    in_reference: ClassVar[frozenset[str] | None] = frozenset()

    type: Literal["mse"] = "mse"
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        return (outputs - targets) ** 2


class MeanAbsoluteError(Loss):
    """The mean of |y - t|."""

    kernel = "mae"
    functional = "l1_loss"
    described_as = "the mean absolute error"

    type: Literal["mae"] = "mae"
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        return abs(outputs - targets)


class HuberLoss(Loss):
    """Half of (y - t)^2 if |y - t| is below 1, otherwise |y - t| - 1/2."""

    # Huber, 1964, with delta 1.

    kernel = "huber"
    functional = "huber_loss"
    described_as = "Huber's loss"

    type: Literal["huber"] = "huber"
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        import numpy as np

        size = np.abs(outputs - targets)
        half = size.dtype.type(0.5)
        return np.where(size < 1, half * size * size, size - half)
