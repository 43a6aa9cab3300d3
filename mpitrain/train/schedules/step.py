"""A schedule of steps: base * gamma ** (epoch // step_size)."""

from __future__ import annotations

from typing import Literal

from mpitrain.config import Count, PositiveNumber
from mpitrain.train.schedules.schedule import Rates, Schedule


class StepSchedule(Schedule):
    """Multiplies the learning rate by a factor every `step_size` epochs."""

    type: Literal["step"]
    """Which schedule; it must be named."""
    step_size: Count = 30
    """Epochs between two steps."""
    gamma: PositiveNumber = 0.5
    """Factor at each step."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "a step schedule"

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        from mpitrain.data.portable_math import power

        return lambda epoch, num_plateaus: base * power(self.gamma, epoch // self.step_size)
