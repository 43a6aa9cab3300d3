"""Errors at each point of a grid, added up over its samples.

N  samples      P  grid points that have samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class GridErrors:
    """Sums of errors over the samples at each of P grid points."""

    inside: npt.NDArray[np.int64]
    """Indices of the points in the flattened grid (P,), ascending."""
    count: Array
    """Number of samples at each point (P,), float64."""
    error: Array
    """Sum of predictions minus data at each point (P,), float64."""
    squared_error: Array
    """Sum of squared errors at each point (P,), float64."""

    @staticmethod
    def of(inside: npt.NDArray[np.int64], errors: Array) -> GridErrors:
        """Return the sums of errors; errors that are not finite are left out.

        Parameters
        ----------
        inside : ndarray of int64, shape (N,)
            Index of each sample's grid point, in any order.
        errors : ndarray of float, shape (N,)
            Predictions minus data.
        """
        counted = np.isfinite(errors)
        ones = np.ones(int(counted.sum()))
        return _added(inside[counted], ones, errors[counted], errors[counted] ** 2)

    @staticmethod
    def together(parts: Sequence[GridErrors]) -> GridErrors:
        """Return the sums over all parts; the same order of parts gives the same bits.

        Parameters
        ----------
        parts : sequence of GridErrors
            At least one.
        """
        return _added(*(np.concatenate([vars(part)[name] for part in parts]) for name in _COLUMNS))

    def of_one_level(self, num_places: int) -> GridErrors:
        """Return the sums over all time levels, given that `inside` numbers the points of successive levels.

        Parameters
        ----------
        num_places : int
            Number of grid points of a level.
        """
        return _added(self.inside % num_places, self.count, self.error, self.squared_error)

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return int(self.count.sum())

    def mean_on(self, shape: tuple[int, ...]) -> Array:
        """Return the mean error at each point of a grid.

        Parameters
        ----------
        shape : tuple of int
            Shape of the grid to which `inside` refers.

        Returns
        -------
        ndarray of float64, shape `shape`
            NaN where there is no sample.
        """
        return self._on(shape, self.error / self.count)

    def rmse_on(self, shape: tuple[int, ...]) -> Array:
        """Return the root mean square error at each point of a grid; see `mean_on`."""
        return self._on(shape, np.sqrt(self.squared_error / self.count))

    def _on(self, shape: tuple[int, ...], values: Array) -> Array:
        grid = np.full(shape, np.nan)
        grid.reshape(-1)[self.inside] = values
        return grid


_COLUMNS = ("inside", "count", "error", "squared_error")


def _added(inside: npt.NDArray[np.int64], *columns: Array) -> GridErrors:
    # With `return_index` numpy uses its stable sort, which is the same on all CPUs; the default sort is not.
    places, _, which = np.unique(inside, return_index=True, return_inverse=True)
    return GridErrors(places, *(np.bincount(which, weights=one, minlength=len(places)) for one in columns))
