"""Which samples are held out, and which virtual rank owns a training sample.

V  virtual ranks      N  samples
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.config import RunConfig
from mpitrain.data.random_streams import Stream, keyed_uniform

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SplitRule:
    """Which samples are held out: those whose random number, by (seed, place among the usable), is in [start, stop).

    Folds are intervals that meet, so that each sample is held out by exactly one of them.
    """

    start: float
    stop: float
    seed: int


def split_rule(config: RunConfig) -> SplitRule:
    """Return the rule of the settings: one of `data.folds`, or the fraction `data.validation_split`."""
    folds = config.data.folds
    if folds is None:
        return SplitRule(0.0, config.validation_split, config.split_seed)
    fold = config.data.fold or 0
    return SplitRule(fold / folds, (fold + 1) / folds, config.split_seed)


def held_out_flags(first: int, count: int, rule: SplitRule) -> npt.NDArray[np.bool_]:
    """Tell which of the usable samples number `first` up to `first` + `count` (count,) are held out.

    Each sample is decided from (seed, number) alone: the same for any number of ranks.
    """
    if rule.start == rule.stop:
        return np.zeros(count, dtype=bool)
    numbers = keyed_uniform((rule.seed, Stream.VALIDATION), count, first)
    flags: npt.NDArray[np.bool_] = (numbers >= rule.start) & (numbers < rule.stop)
    return flags


def split_validation(num_samples: int, fraction: float, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return the training and the validation samples' positions, each in file order."""
    is_validation = held_out_flags(0, num_samples, SplitRule(0.0, fraction, seed))
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def members_of(virtual_rank: int, num_virtual_ranks: int, num_samples: int) -> IndexArray:
    """Return the sample numbers that belong to virtual rank v for ever: v, v + V, v + 2V, ..."""
    return np.arange(virtual_rank, num_samples, num_virtual_ranks)
