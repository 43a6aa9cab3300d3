"""Learning rates as pure functions of the epoch and the plateaus so far: nothing hidden to save, nothing to drift."""

from __future__ import annotations

import math

from mpitrain.config.training import SchedulerSection
from mpitrain.data.portable_math import cosine_of_turns, power

REFERENCE_BATCH_SIZE = 64


def learning_rate_at(
    epoch: int, num_epochs: int, base: float, settings: SchedulerSection | None, num_plateaus: int = 0
) -> float:
    """Return the learning rate of `epoch` (from 0) of `num_epochs`.

    warm-up: base * (epoch + 1) / warmup_epochs, before any schedule, whose epochs then count from its end.
    step: base * gamma ** (epoch // step_size).
    cosine: from base to min_learning_rate along half a cosine (Loshchilov and Hutter, 2017, without restarts).
    plateau: base * gamma ** `num_plateaus`, not below min_learning_rate.
    """
    if settings is None:
        return base
    if epoch < settings.warmup_epochs:
        return base * (epoch + 1) / settings.warmup_epochs
    epoch, num_epochs = epoch - settings.warmup_epochs, max(num_epochs - settings.warmup_epochs, 1)
    lowest = settings.min_learning_rate
    if settings.type == "step":
        return base * power(settings.gamma, epoch // settings.step_size)
    if settings.type == "plateau":
        return max(lowest, base * power(settings.gamma, num_plateaus))
    if settings.type == "cosine":
        return lowest + (base - lowest) * (1 + float(cosine_of_turns(epoch / num_epochs / 2))) / 2
    return base


def scaled_learning_rate(base: float, scaling: str, ratio: float) -> float:
    """Return `base` times `ratio` (linear: Goyal et al., 2017), its square root (sqrt), or neither (none)."""
    return base * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]
