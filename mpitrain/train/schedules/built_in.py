"""The built-in schedules."""

from __future__ import annotations

from typing import ClassVar, Literal

from mpitrain.config import Count, CountOrZero, NumberOrZero, PositiveNumber
from mpitrain.train.schedules.schedule import Rates, Schedule


class ConstantSchedule(Schedule):
    """A constant learning rate, after the warm-up."""

    described_as = ""
    in_reference: ClassVar[frozenset[str] | None] = frozenset({"warmup_epochs"})

    type: Literal["none"]
    """Which schedule; required."""

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        return lambda epoch, num_plateaus: base


class StepSchedule(Schedule):
    """base * gamma ** (epoch // step_size): multiplies the learning rate by `gamma` every `step_size` epochs."""

    described_as = "a step schedule"

    type: Literal["step"]
    """Which schedule; required."""
    step_size: Count = 30
    """Epochs between two steps."""
    gamma: PositiveNumber = 0.5
    """Factor at each step."""

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        from mpitrain.data.portable_math import power

        return lambda epoch, num_plateaus: base * power(self.gamma, epoch // self.step_size)


class CosineSchedule(Schedule):
    """Lowers the learning rate along half a period of a cosine."""

    # Loshchilov and Hutter, 2017, without restarts.

    described_as = "a cosine schedule"

    type: Literal["cosine"]
    """Which schedule; required."""
    min_learning_rate: NumberOrZero = 0.0
    """Learning rate at the end."""

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


class PlateauSchedule(Schedule):
    """Multiplies the learning rate by a factor whenever the loss has stopped improving."""

    described_as = "a plateau schedule"

    type: Literal["plateau"]
    """Which schedule; required."""
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

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        from mpitrain.data.portable_math import power

        return lambda epoch, num_plateaus: max(self.min_learning_rate, base * power(self.gamma, num_plateaus))
