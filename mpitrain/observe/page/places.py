"""Errors at each place of a grid, added up over all samples there.

N  samples      P  places that have samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PlaceErrors:
    """Sums over the samples at each of the places `inside` (P,) of a grid: `count`, `error`, `squared_error` (P,)."""

    inside: npt.NDArray[np.int64]
    count: Array
    error: Array
    squared_error: Array

    @staticmethod
    def of(inside: npt.NDArray[np.int64], errors: Array) -> PlaceErrors:
        """Return the sums of errors (N,) at places (N,); what is no number counts nothing."""
        counted = np.isfinite(errors)
        ones = np.ones(int(counted.sum()))
        return _added(inside[counted], ones, errors[counted], errors[counted] ** 2)

    @staticmethod
    def together(parts: Sequence[PlaceErrors]) -> PlaceErrors:
        """Return the sums over all parts (at least one): in the same order the same bits."""
        return _added(*(np.concatenate([vars(part)[name] for part in parts]) for name in _COLUMNS))

    def of_one_level(self, num_places: int) -> PlaceErrors:
        """Return the sums over all time levels, where `inside` counts on from one to the next."""
        return _added(self.inside % num_places, self.count, self.error, self.squared_error)

    @property
    def num_samples(self) -> int:
        """How many samples are in it."""
        return int(self.count.sum())

    def mean_on(self, shape: tuple[int, ...]) -> Array:
        """Return the mean error at each place of a grid of this shape, NaN where there is no sample."""
        return self._on(shape, self.error / self.count)

    def rmse_on(self, shape: tuple[int, ...]) -> Array:
        """Return the root of the mean squared error at each place of a grid, NaN where there is no sample."""
        return self._on(shape, np.sqrt(self.squared_error / self.count))

    def _on(self, shape: tuple[int, ...], values: Array) -> Array:
        grid = np.full(shape, np.nan)
        grid.reshape(-1)[self.inside] = values
        return grid


_COLUMNS = ("inside", "count", "error", "squared_error")


def _added(inside: npt.NDArray[np.int64], *columns: Array) -> PlaceErrors:
    # With `return_index` numpy sorts by its stable algorithm: the other one has a version for each kind of CPU.
    places, _, which = np.unique(inside, return_index=True, return_inverse=True)
    return PlaceErrors(places, *(np.bincount(which, weights=one, minlength=len(places)) for one in columns))
