"""Sums of weighted losses of numpy arrays, for the summary of a run.

b  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array
from mpitrain.config import TrainingSection
from mpitrain.data import Microbatch
from mpitrain.train.losses.loss import Loss

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ArrayLoss:
    """A loss summed with weights; outputs and targets are divided by `output_std` (O,), unless it is None.

    `target_weights` (O,) multiply the weights of the samples; (): all are 1.
    """

    loss: Loss
    output_std: Array | None = None
    target_weights: Sequence[float] = ()

    def sums_by_target(self, outputs: Array, microbatch: Microbatch) -> Array:
        """Return for each target the sum of weight * loss and the sum of the weights (O, 2), in float64.

        `outputs` (b, O, ...) must have the shape of `microbatch.targets`; losses are computed in the type of both.
        """
        targets, axes = host_array(microbatch.targets), [-1, *[1] * (np.ndim(microbatch.targets) - 2)]
        std = None if self.output_std is None else self.output_std.reshape(axes)
        scaled = (outputs, targets) if std is None else (outputs / std, targets / std)
        losses = self.loss.of_arrays(*scaled).astype(np.float64)
        weights = host_array(microbatch.weights).astype(np.float64)
        if self.target_weights:
            weights = weights * np.asarray(self.target_weights).reshape(axes)
        weights = np.broadcast_to(weights, losses.shape)
        others = tuple(axis for axis in range(losses.ndim) if axis != 1)
        return np.stack([(losses * weights).sum(others), weights.sum(others)], axis=1)


def array_loss_of(loss: Loss, model: Any, target_weights: Sequence[float] = ()) -> ArrayLoss:
    """Return `loss` for `model`: scaled by the standard deviations that normalise the model's outputs, if any."""
    std = dict(model.named_buffers()).get("output_std")
    std = None if std is None else host_array(std)
    return ArrayLoss(loss, None if std is None or bool((std == 1).all()) else std, tuple(target_weights))


def target_weights_of(training: TrainingSection, target_names: Sequence[str]) -> tuple[float, ...]:
    """Return the weights of the targets in the loss, `training.loss_weights`.

    Parameters
    ----------
    training : TrainingSection
        The section `training` of the settings.
    target_names : sequence of str, length O
        In the order of the model's outputs.

    Returns
    -------
    tuple of float, length O
        1 for a target that the setting does not name; () if all are 1.
    """
    given = training.loss_weights or {}
    weights = tuple(float(given.get(name, 1.0)) for name in target_names)
    return weights if any(one != 1 for one in weights) else ()
