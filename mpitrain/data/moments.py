"""Statistics of samples: count, mean, sum of squared deviations, minimum and maximum, merged in a fixed order.

C  columns      N  samples      F  input features      O  targets      V  virtual ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.comm import FixedTreeReducer, VirtualRanks
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.reduction import combine_in_tree
from mpitrain.data.samples import Samples

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Moments of each feature's values, each (C,) float64.

    `count` is the sum of the values' weights, `m2` the sum of their squared deviations from `mean`.
    """

    count: DoubleArray
    mean: DoubleArray
    m2: DoubleArray
    minimum: DoubleArray
    maximum: DoubleArray

    @property
    def std(self) -> DoubleArray:
        """Population standard deviation (C,); 0 without values."""
        return np.sqrt(self.m2 / np.maximum(self.count, np.finfo(np.float64).tiny))

    def packed(self) -> DoubleArray:
        """Return all moments in one array (5C,), a row of the arguments of `merge_stacks`."""
        return np.concatenate((self.count, self.mean, self.m2, self.minimum, self.maximum))

    @classmethod
    def unpacked(cls, packed: DoubleArray) -> Moments:
        """Return the moments from an array (5C,) that `packed` returned."""
        return cls(*np.split(packed, 5))


def moments_of(
    columns: Iterable[npt.NDArray[np.floating]], weights: Iterable[npt.NDArray[np.floating] | None] | None = None
) -> Moments:
    """Return the moments of C columns, each (N,), in two passes in float64; NaN is ignored, N may be 0.

    `weights` holds None or non-negative weights (N,) for each column.
    """
    columns = list(columns)
    given = [None] * len(columns) if weights is None else list(weights)
    parts = [_moments_of_one(*pair) for pair in zip(columns, given, strict=True)]
    return Moments(*(np.array(numbers) for numbers in zip(*parts, strict=True)))


def _moments_of_one(
    column: npt.NDArray[np.floating], weights: npt.NDArray[np.floating] | None
) -> tuple[float, float, float, float, float]:
    values = np.ascontiguousarray(column, dtype=np.float64)
    is_used = ~np.isnan(values)
    if weights is not None:
        is_used &= weights > 0
    if not is_used.all():
        values, weights = values[is_used], None if weights is None else weights[is_used]
    if len(values) == 0:
        return 0.0, 0.0, 0.0, np.inf, -np.inf
    # numpy sums a contiguous array pairwise, with a far smaller error than sequential summation.
    scale = None if weights is None else np.asarray(weights, dtype=np.float64)
    count = float(len(values)) if scale is None else float(scale.sum())
    mean = float(values.mean()) if scale is None else float((scale * values).sum() / count)
    deviations = values - mean
    weighted = deviations if scale is None else scale * deviations
    # The mean is rounded: Chan's correction removes its error from the sum of squares.
    m2 = float((weighted * deviations).sum()) - float(weighted.sum()) ** 2 / count
    return count, mean, max(m2, 0.0), float(values.min()), float(values.max())


def merge_stacks(lower: DoubleArray, upper: DoubleArray) -> DoubleArray:
    """Merge packed moments (m, 5C) pair by pair (Chan, Golub and LeVeque, 1983)."""
    count_a, mean_a, m2_a, minimum_a, maximum_a = np.split(lower, 5, axis=1)
    count_b, mean_b, m2_b, minimum_b, maximum_b = np.split(upper, 5, axis=1)
    count = count_a + count_b
    share = count_b / np.where(count > 0, count, 1.0)
    delta = mean_b - mean_a
    mean = mean_a + delta * share
    m2 = m2_a + m2_b + delta * delta * (count_a * share)
    lowest, highest = np.minimum(minimum_a, minimum_b), np.maximum(maximum_a, maximum_b)
    return np.concatenate([count, mean, m2, lowest, highest], axis=1)


def allreduce_moments(local: list[Moments], communicator: Communicator, virtual_ranks: VirtualRanks) -> Moments:
    """Merge the virtual ranks' moments over all ranks in the fixed tree. Collective.

    `local` holds one entry for each owned virtual rank, in order; the number of features must agree on all ranks.
    """
    packed = np.stack([moments.packed() for moments in local])
    return Moments.unpacked(FixedTreeReducer(communicator, virtual_ranks).reduce(packed, merge_stacks))


def merge_in_tree(parts: Sequence[Moments], num_features: int) -> Moments:
    """Merge moments of C features pairwise, neighbours first, in an order that depends only on the number of parts."""
    num_rows = 1 << max(0, len(parts) - 1).bit_length()
    nothing = moments_of([np.empty(0)] * num_features)
    padded = [*parts, *[nothing] * (num_rows - len(parts))]
    return Moments.unpacked(combine_in_tree(np.stack([one.packed() for one in padded]), merge_stacks))


def moments_of_samples(samples: Samples) -> Moments:
    """Return the moments of the F inputs and the O targets (F + O,): over points, or over the fields' measured points.

    In fields an input counts at the points where the weight of any target is above 0, so that masked land has no
    influence.
    """
    return moments_of([column.reshape(-1) for column in samples.features], _weights(samples))


def _weights(samples: Samples) -> list[npt.NDArray[np.floating] | None]:
    area = None if samples.area_weights is None else samples.area_weights.reshape(-1)
    num_inputs, num_targets = samples.inputs.shape[1], samples.targets.shape[1]
    if samples.weights is None:
        return [area] * (num_inputs + num_targets)
    last = samples.weights.shape[1] - 1
    counts = [samples.weights[:, min(c, last)].reshape(-1) > 0 for c in range(num_targets)]
    anywhere = np.logical_or.reduce(counts)
    masks = [anywhere] * num_inputs + counts
    return [mask.astype(np.float32) if area is None else mask * area for mask in masks]
