"""A cosine schedule: half a cosine (Loshchilov and Hutter, 2017, without restarts)."""

from __future__ import annotations

from typing import Literal

from mpitrain.config import NumberOrZero
from mpitrain.train.schedules.schedule import Rates, Schedule


class CosineSchedule(Schedule):
    """Lowers the learning rate along half a cosine."""

    type: Literal["cosine"]
    """Which schedule; it must be named."""
    min_learning_rate: NumberOrZero = 0.0
    """Learning rate at the end."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "a cosine schedule"

    @property
    def follows_epochs(self) -> bool:
        """See `Schedule.follows_epochs`."""
        return True

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        from mpitrain.data.portable_math import cosine_of_turns

        lowest = self.min_learning_rate

        def rate(epoch: int, num_plateaus: int) -> float:
            return lowest + (base - lowest) * (1 + float(cosine_of_turns(epoch / num_epochs / 2))) / 2

        return rate
