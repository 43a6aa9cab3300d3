"""Count, mean, spread and range of each feature, exact enough to be merged in any fixed order.

C  features (columns)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.virtual_ranks import VirtualRanks

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Moments of `count` rows: `mean`, `m2` (sum of squared deviations), `minimum`, `maximum`, each (C,) float64."""

    count: float
    mean: DoubleArray
    m2: DoubleArray
    minimum: DoubleArray
    maximum: DoubleArray

    @property
    def std(self) -> DoubleArray:
        """Population standard deviation (C,)."""
        return np.sqrt(self.m2 / self.count)


def moments_of(rows: npt.NDArray[np.floating]) -> Moments:
    """Return the moments of `rows` (N, C), in two passes in float64; N may be 0."""
    num_features = rows.shape[1]
    if len(rows) == 0:
        zero = np.zeros(num_features)
        return Moments(0.0, zero, zero, np.full(num_features, np.inf), np.full(num_features, -np.inf))
    # Features as contiguous rows: numpy then adds each pairwise, with far smaller error than down a column.
    columns = np.ascontiguousarray(rows.T, dtype=np.float64)
    mean = columns.mean(axis=1)
    deviations = columns - mean[:, None]
    # The mean is rounded: Chan's correction takes its error out of the squares.
    m2 = (deviations**2).sum(axis=1) - deviations.sum(axis=1) ** 2 / len(rows)
    return Moments(float(len(rows)), mean, np.maximum(m2, 0.0), columns.min(axis=1), columns.max(axis=1))


def merge_stacks(lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """Merge packed moments (m, 1 + 4C) pair by pair (Chan, Golub and LeVeque, 1983)."""
    count_a, mean_a, m2_a, minimum_a, maximum_a = _unpack(lower)
    count_b, mean_b, m2_b, minimum_b, maximum_b = _unpack(upper)
    count = count_a + count_b
    share = count_b / torch.clamp(count, min=1.0)
    delta = mean_b - mean_a
    mean = mean_a + delta * share
    m2 = m2_a + m2_b + delta * delta * (count_a * share)
    return torch.cat([count, mean, m2, torch.minimum(minimum_a, minimum_b), torch.maximum(maximum_a, maximum_b)], dim=1)


def allreduce_moments(local: list[Moments], communicator: Communicator, virtual_ranks: VirtualRanks) -> Moments:
    """Merge the virtual ranks' moments over all ranks in the fixed tree. Collective.

    `local` holds one entry for each owned virtual rank, in order; the number of features must agree on all ranks.
    """
    packed = torch.stack([_pack(moments) for moments in local])
    count, mean, m2, minimum, maximum = _unpack(
        FixedTreeReducer(communicator, virtual_ranks).reduce(packed, merge_stacks)[None]
    )
    return Moments(float(count[0, 0]), *(part[0].numpy() for part in (mean, m2, minimum, maximum)))


def _pack(moments: Moments) -> torch.Tensor:
    parts = ([moments.count], moments.mean, moments.m2, moments.minimum, moments.maximum)
    return torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.float64) for part in parts]))


def _unpack(packed: torch.Tensor) -> tuple[torch.Tensor, ...]:
    num_features = (packed.shape[1] - 1) // 4
    return torch.split(packed, [1, *[num_features] * 4], dim=1)
