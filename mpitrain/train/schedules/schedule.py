"""Learning rates as functions of the epoch and the number of plateaus, without state that must be saved."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpitrain.config import CountOrZero, TypedComponent

REFERENCE_BATCH_SIZE = 64
Rates = Callable[[int, int], float]
"""A function of the epoch (from 0) and the number of plateaus so far that returns the learning rate."""


class Schedule(TypedComponent):
    """Base class of schedules of the learning rate.

    A subclass defines its options as fields, its `type`, and `build`.

    Notes
    -----
    `learning_rates` adds the warm-up before the schedule: base * (epoch + 1) / `warmup_epochs`. The built-in schedules
    of the base b and the epoch e of E epochs after the warm-up: `none`, b; `step`, b * gamma^(e // step_size); `cosine`
    (Loshchilov and Hutter, 2017, without restarts), m + (b - m) * (1 + cos(pi * e / E)) / 2 with m =
    `min_learning_rate`; `plateau`, max(m, b * gamma^p) after p plateaus.
    """

    type: str
    """Which schedule; required."""
    warmup_epochs: CountOrZero = 0
    """Epochs of linear warm-up before the schedule begins."""

    @property
    def plateau_patience(self) -> int | None:
        """The number of epochs without a lower loss after which the next one makes a plateau; None: no plateaus."""
        return None

    @property
    def follows_epochs(self) -> bool:
        """Whether the learning rates depend on the number of epochs of the run."""
        return False

    def build(self, base: float, num_epochs: int) -> Rates:
        """Return the learning rates of the epochs after the warm-up.

        Parameters
        ----------
        base : float
            The learning rate of the optimiser, scaled by `training.learning_rate_scaling`.
        num_epochs : int
            Number of epochs after the warm-up, at least 1.

        Returns
        -------
        callable
            A function of the epoch, from 0 after the warm-up, and of the number of plateaus so far, that returns the
            learning rate as a float. It must depend on these only: a resumed run calls it again, and no state is saved.
            It must give the same number on all ranks.

        Raises
        ------
        ConfigError
            Named code cannot be imported, fails, or changes the momentum; also when the function is called, if a
            learning rate is negative or not finite. Raised on this rank only.
        """
        raise NotImplementedError


def learning_rates(schedule: Schedule | None, base: float, num_epochs: int) -> Rates:
    """Return the learning rates of a run of `num_epochs`; without a schedule they are `base`.

    During the warm-up: base * (epoch + 1) / warmup_epochs. The schedule counts its epochs from the end of the warm-up.

    Raises ConfigError if the schedule cannot be built.
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
    """Return `base` times `ratio` (linear: Goyal et al., 2017), times its square root (sqrt), or unchanged (none)."""
    return base * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]
