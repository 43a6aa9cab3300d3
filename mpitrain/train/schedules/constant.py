"""No schedule: a constant learning rate, after the warm-up."""

from __future__ import annotations

from typing import ClassVar, Literal

from mpitrain.train.schedules.schedule import Rates, Schedule


class ConstantSchedule(Schedule):
    """A constant learning rate."""

    in_reference: ClassVar[frozenset[str] | None] = frozenset({"warmup_epochs"})

    type: Literal["none"]
    """Which schedule; it must be named."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return ""

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        return lambda epoch, num_plateaus: base
