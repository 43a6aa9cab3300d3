"""Samples in memory: inputs, targets, weights and positions in the source.

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
    """Numbers of points that were read but are not samples: excluded by the rule, or by an area of 0 or NaN."""

    by_rule: int = 0
    without_area: int = 0


NONE_LEFT_OUT = LeftOut()


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their source, points or whole fields.

    Attributes
    ----------
    inputs : ndarray of float32, shape (N, F) or (N, F, H, W)
        In the units of `SampleSource.units`, NaN where missing; float64 if `Selection.dtype` is float64.
    targets : ndarray of float32, shape (N, O) or (N, O, H, W)
        As `inputs`, or transformed by `Selection.target_transforms`; O is 0 if the files have no targets.
    grid_index : ndarray of int64, shape (N,)
        Position of each sample in its source: t * nj * ni + j * ni + i for points of a grid, t for fields, the number
        of the row for tables of samples.
    input_names, target_names : tuple of str, lengths F and O
        Names as the settings spell them.
    weights : ndarray of float32, shape (N, 1), (N, O, H, W), or (N, 1, H, W) without targets; or None
        Weights of the targets in the loss; 0 at points of fields that are not selected or not measured, such as land.
        None (default): 1 everywhere.
    area_weights : ndarray of float32, shape (N,) or (N, H, W), or None
        Weights of the points in the statistics: cosine of the latitude, or relative area. None (default): all equal.
    left_out : LeftOut
        Numbers of the other points that were read together with these samples; `take` does not change it.
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
        """Return some of the samples as a copy.

        Parameters
        ----------
        positions : ndarray of int64, shape (M,)
            Indices of the samples, in the order of the result.

        Returns
        -------
        Samples
            M samples; `left_out` is unchanged.
        """
        return self.changed(lambda column: np.take(column, positions, axis=0))

    def changed(self, change: Callable[[Any], Any]) -> Samples:
        """Return samples with a function applied to each array.

        Parameters
        ----------
        change : callable
            Function of an array with the samples along axis 0. It must treat the rows of all arrays alike.

        Returns
        -------
        Samples
            Samples with the changed arrays.
        """
        values: dict[str, Any] = {name: change(column) for name, column in self.columns().items()}
        return replace(self, **values)

    def columns(self) -> dict[str, Any]:
        """Return the arrays by name.

        Returns
        -------
        dict of str to ndarray
            `inputs`, `targets`, `grid_index`, `weights` and `area_weights`, those that are not None; axis 0 of each is
            the sample.
        """
        names = ("inputs", "targets", "grid_index", "weights", "area_weights")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts (at least one), in order; names and shapes must agree."""
    columns = [part.columns() for part in parts]
    joined: dict[str, Any] = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    left_out = LeftOut(*(sum(counts) for counts in zip(*(part.left_out for part in parts), strict=True)))
    return parts[0] if len(parts) == 1 else replace(parts[0], left_out=left_out, **joined)


def valid_rows(samples: Samples) -> npt.NDArray[np.bool_]:
    """Tell which samples are usable.

    Parameters
    ----------
    samples : Samples
        N samples, points or fields.

    Returns
    -------
    ndarray of bool, shape (N,)
        True for a point without missing values: no NaN, infinity or fill value in inputs and targets. True for a field
        with at least one target value that is not missing and has a weight above 0, so never without targets.
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
    """Tell which values are measurements, neither NaN (missing) nor infinite; same shape."""
    measured: npt.NDArray[np.bool_] = np.isfinite(values)
    return measured


def missing_of(samples: Samples) -> list[int]:
    """Return the number of missing values of each input and target (F + O)."""
    return [int(column.size - np.count_nonzero(is_measured(column))) for column in samples.features]


def first_invalid_feature(samples: Samples) -> str | None:
    """Return the name of the first input or target of point samples that has missing values; None if there is none."""
    named = zip((*samples.input_names, *samples.target_names), samples.features, strict=True)
    return next((name for name, column in named if not is_measured(column).all()), None)
