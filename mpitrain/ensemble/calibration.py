"""Whether an ensemble's spread tells its error: by size, bin by bin, and by the rank of the truth among the members.

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
    """Error of the members' mean, and the error that their spread foretells, over N samples of one target.

    If the truth is one more draw of what the members are drawn from, the squared error of their mean is
    (M + 1) / M times their variance (Fortin et al., 2014, doi:10.1175/JHM-D-14-0008.1), and its rank is uniform.
    Noise of the target, where its variance is known, adds to what is foretold. `bins` are pairs (foretold, error), by
    rising spread; `rank_counts` (M + 1,) how often so many members lie below the truth.
    """

    num_samples: int
    error: float
    foretold: float
    bins: Sequence[tuple[float, float]]
    rank_counts: Sequence[int]

    @property
    def ratio(self) -> float:
        """The foretold error divided by the error: 1 is calibrated, less is overconfident; NaN without an error."""
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
