"""The statistics of samples: of each input and target, over what is measured and counts.

F  input features      O  targets
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mpitrain.data.moments import Moments, moments_of
from mpitrain.data.samples import Samples


def moments_of_samples(samples: Samples) -> Moments:
    """Return the moments of the F inputs and the O targets (F + O,): over points, or over the fields' measured points.

    A field's inputs count where any target does: what lies under the land mask has no influence.
    """
    columns = [_column(array, c) for array in (samples.inputs, samples.targets) for c in range(array.shape[1])]
    return moments_of(columns, _weights(samples))


def _column(array: npt.NDArray[np.floating], channel: int) -> npt.NDArray[np.floating]:
    return array[:, channel].reshape(-1)


def _weights(samples: Samples) -> list[npt.NDArray[np.floating] | None]:
    area = None if samples.area_weights is None else samples.area_weights.reshape(-1)
    num_inputs, num_targets = samples.inputs.shape[1], samples.targets.shape[1]
    if samples.weights is None:
        return [area] * (num_inputs + num_targets)
    counts = [_column(samples.weights, min(c, samples.weights.shape[1] - 1)) > 0 for c in range(num_targets)]
    anywhere = np.logical_or.reduce(counts)
    masks = [anywhere] * num_inputs + counts
    return [mask.astype(np.float32) if area is None else mask * area for mask in masks]
