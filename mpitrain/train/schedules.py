"""Learning rates as pure functions of the epoch: nothing to save, nothing to drift between ranks."""

from __future__ import annotations

import math

from mpitrain.config.sections import SchedulerSection


def learning_rate_at(epoch: int, num_epochs: int, base: float, settings: SchedulerSection | None) -> float:
    """Return the learning rate of `epoch` (from 0) of `num_epochs`.

    step: base * gamma ** (epoch // step_size).
    cosine: from base to min_learning_rate along half a cosine (Loshchilov and Hutter, 2017, without restarts).
    """
    if settings is None or settings.type == "none":
        return base
    if settings.type == "step":
        return float(base * settings.gamma ** (epoch // settings.step_size))
    lowest = settings.min_learning_rate
    return lowest + (base - lowest) * (1 + math.cos(math.pi * epoch / num_epochs)) / 2
