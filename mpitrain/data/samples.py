"""Samples in memory: what is known of each, what is wanted of it, and where it came from.

N  samples      F  input features      O  targets      H, W  rows and columns of a field
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.names import CICE_TARGET

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]


class LeftOut(NamedTuple):
    """Points that were read and are no samples: how many the rule leaves out, and how many more for their area."""

    by_rule: int = 0
    without_area: int = 0


NONE_LEFT_OUT = LeftOut()


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their source, points or whole fields.

    `inputs` (N, F) or (N, F, H, W) and `targets` (N, O) or (N, O, H, W), float32; what is no measurement is NaN.
    `weights` (N, 1, H, W) or (N, O, H, W) says how much each target counts, 0 on land, and (N, 1) for points; None: all
    count 1.
    `grid_index` (N,) int64 is each sample's position in its source: t * nj * ni + j * ni + i for points, t for fields.
    `area_weights` (N,) or (N, H, W), where the statistics are weighted: how much each point counts in them.
    `left_out` counts the points beside these that were read with them, whichever of these are taken.
    """

    inputs: FloatArray
    targets: FloatArray
    grid_index: IndexArray
    input_names: tuple[str, ...]
    target_names: tuple[str, ...] = (CICE_TARGET,)
    weights: FloatArray | None = None
    area_weights: FloatArray | None = None
    left_out: LeftOut = NONE_LEFT_OUT

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def features(self) -> list[Any]:
        """The values (N,) or (N, H, W) of each input, then of each target."""
        return [array[:, column] for array in (self.inputs, self.targets) for column in range(array.shape[1])]

    def take(self, positions: IndexArray) -> Samples:
        """Return the samples at `positions` as a copy, in that order."""
        return self.changed(lambda column: np.take(column, positions, axis=0))

    def changed(self, change: Callable[[Any], Any]) -> Samples:
        """Return samples whose arrays are `change` of these ones: row by row the same for all of them."""
        values: dict[str, Any] = {name: change(column) for name, column in self.columns().items()}
        return replace(self, **values)

    def columns(self) -> dict[str, Any]:
        """Return the arrays that are there, by name; axis 0 of each counts the samples."""
        names = ("inputs", "targets", "grid_index", "weights", "area_weights")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts (at least one), in their order; names and shapes must agree."""
    columns = [part.columns() for part in parts]
    joined: dict[str, Any] = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    left_out = LeftOut(*(sum(counts) for counts in zip(*(part.left_out for part in parts), strict=True)))
    return parts[0] if len(parts) == 1 else replace(parts[0], left_out=left_out, **joined)


def valid_rows(samples: Samples) -> npt.NDArray[np.bool_]:
    """Tell which samples (N,) can be trained on.

    A point must hold measurements only: no NaN, no infinity, no fill value. A field needs one target that counts.
    """
    if samples.inputs.ndim > 2:
        counts = is_measured(samples.targets)
        if samples.weights is not None:
            counts = np.logical_and(counts, samples.weights > 0)
        return np.asarray(counts.any(axis=tuple(range(1, counts.ndim))))
    valid = np.ones(len(samples), dtype=bool)
    for column in samples.features:
        valid &= is_measured(column)
    return valid


def is_measured(values: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Tell which values are measurements: neither NaN, as what is missing, nor infinite; same shape."""
    measured: npt.NDArray[np.bool_] = np.isfinite(values)
    return measured


def missing_of(samples: Samples) -> list[int]:
    """Return for each input and target (F + O) how many values are no measurement."""
    return [int(column.size - np.count_nonzero(is_measured(column))) for column in samples.features]


def first_invalid_feature(samples: Samples) -> str | None:
    """Name the first input or target of point samples that holds a NaN, an infinity or a fill value; None if none."""
    named = zip((*samples.input_names, *samples.target_names), samples.features, strict=True)
    return next((name for name, column in named if not is_measured(column).all()), None)
