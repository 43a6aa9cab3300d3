"""Learning rates as functions of the epoch and the number of plateaus: without state to save."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpitrain.config import CountOrZero, TypedComponent

REFERENCE_BATCH_SIZE = 64
Rates = Callable[[int, int], float]
"""The epoch (from 0) and the number of plateaus so far to the learning rate."""


class Schedule(TypedComponent):
    """A schedule of the learning rate."""

    type: str
    """Which schedule; it must be named."""
    warmup_epochs: CountOrZero = 0
    """Epochs of linear warm-up before the schedule begins."""

    @property
    def plateau_patience(self) -> int | None:
        """Epochs without a better loss that make a plateau; None where plateaus do not matter."""
        return None

    @property
    def follows_epochs(self) -> bool:
        """Whether the rates of all epochs follow from how many there are."""
        return False

    def build(self, base: float, num_epochs: int) -> Rates:
        """Return the learning rates of `num_epochs` epochs after the warm-up, from `base` on.

        Raises ConfigError where there are none.
        """
        raise NotImplementedError


def learning_rates(schedule: Schedule | None, base: float, num_epochs: int) -> Rates:
    """Return the learning rates of a run of `num_epochs`; `schedule` None keeps them at `base`.

    During the warm-up: base * (epoch + 1) / warmup_epochs. The schedule's epochs count from its end.

    Raises ConfigError.
    """
    if schedule is None:
        return lambda epoch, num_plateaus: base
    warmup_epochs = schedule.warmup_epochs
    after = schedule.build(base, max(num_epochs - warmup_epochs, 1))

    def rate(epoch: int, num_plateaus: int) -> float:
        if epoch < warmup_epochs:
            return base * (epoch + 1) / warmup_epochs
        return after(epoch - warmup_epochs, num_plateaus)

    return rate


def scaled_learning_rate(base: float, scaling: str, ratio: float) -> float:
    """Return `base` times `ratio` (linear: Goyal et al., 2017), its square root (sqrt), or neither (none)."""
    return base * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]
