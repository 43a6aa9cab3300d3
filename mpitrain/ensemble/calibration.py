"""Calibration of an ensemble: its spread against its error, in bins, and the rank of the truth among the members.

M  members      N  samples
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_NUM_BINS = 10


@dataclass(frozen=True)
class Calibration:
    """RMSE of the members' mean (`error`) and that expected from their spread (`foretold`), over N samples of a target.

    If the truth is drawn from the same distribution as the members, the expected squared error of their mean is
    (M + 1) / M times their variance (Fortin et al., 2014, doi:10.1175/JHM-D-14-0008.1), and its rank is uniform.
    The noise variance of the target is added if it is known. `bins` are pairs (`foretold`, `error`) by increasing
    spread; `rank_counts` (M + 1,) are the numbers of samples with 0, 1, ..., M members below the truth.
    """

    num_samples: int
    error: float
    foretold: float
    bins: Sequence[tuple[float, float]]
    rank_counts: Sequence[int]

    @property
    def ratio(self) -> float:
        """`foretold` divided by `error`: 1 if calibrated, less than 1 if overconfident; NaN if the error is 0."""
        return self.foretold / self.error if self.error > 0 else math.nan


def calibration_of(values: Array, truth: Array, noise_variance: float = 0.0) -> Calibration:
    """Return how the members' `values` (M, N), M > 1, compare with `truth` (N,), N > 0."""
    num_members = len(values)
    squared_errors = (values.mean(0) - truth) ** 2
    variances = values.var(0, ddof=1) * (num_members + 1) / num_members + noise_variance
    order = np.argsort(variances, kind="stable")
    parts = [part for part in np.array_split(order, min(_NUM_BINS, len(order))) if len(part)]
    bins = [(_root_mean(variances[part]), _root_mean(squared_errors[part])) for part in parts]
    below = (values < truth).sum(0)
    counts = np.bincount(below, minlength=num_members + 1).tolist()
    return Calibration(len(truth), _root_mean(squared_errors), _root_mean(variances), bins, counts)


def _root_mean(squares: Array) -> float:
    return float(np.sqrt(squares.mean()))
