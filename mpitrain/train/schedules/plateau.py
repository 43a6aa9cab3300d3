"""A schedule that waits for plateaus: base * gamma ** (number of plateaus so far)."""

from __future__ import annotations

from typing import Literal

from mpitrain.config import CountOrZero, NumberOrZero, PositiveNumber
from mpitrain.train.schedules.schedule import Rates, Schedule


class PlateauSchedule(Schedule):
    """Multiplies the learning rate by a factor whenever the loss has stopped getting better."""

    type: Literal["plateau"]
    """Which schedule; it must be named."""
    gamma: PositiveNumber = 0.5
    """Factor at each plateau."""
    patience: CountOrZero = 10
    """Epochs without a better loss before the factor is applied."""
    min_learning_rate: NumberOrZero = 0.0
    """Lowest learning rate."""

    @property
    def plateau_patience(self) -> int | None:
        """See `Schedule.plateau_patience`."""
        return self.patience

    def describe(self) -> str:
        """See `Component.describe`."""
        return "a plateau schedule"

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        from mpitrain.data.portable_math import power

        return lambda epoch, num_plateaus: max(self.min_learning_rate, base * power(self.gamma, num_plateaus))
