"""The mean squared error."""

from __future__ import annotations

from typing import ClassVar, Literal

from mpitrain.train.losses.loss import Array, Loss


class MeanSquaredError(Loss):
    """The mean of (y - t)^2."""

    kernel = "mse"
    functional = "mse_loss"
    is_squared_error = True
    in_reference: ClassVar[frozenset[str] | None] = frozenset()

    type: Literal["mse"] = "mse"
    """Which loss."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "the mean squared error"

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """See `Loss.of_arrays`."""
        return (outputs - targets) ** 2
