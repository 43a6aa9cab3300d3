"""Skill of predictions: sums over any number of parts, and the scores computed from them.

N  values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class ErrorSums:
    """Weighted sums over one target in float64; merging in the same order gives the same bits."""

    count: int = 0
    """Number of values."""
    weight: float = 0.0
    """Sum of the weights."""
    error: float = 0.0
    """Sum of the errors, prediction minus target."""
    squared_error: float = 0.0
    """Sum of the squared errors."""
    target_mean: float = 0.0
    """Mean of the target."""
    target_m2: float = 0.0
    """Sum of the target's squared deviations from its mean."""

    @classmethod
    def of(cls, targets: Array, errors: Array, weights: Array | None = None) -> ErrorSums:
        """Return the sums of targets and errors.

        Parameters
        ----------
        targets : ndarray of float, shape (N,) or (N, ...)
            True values; those that are not finite are left out.
        errors : ndarray of float, same shape
            Predictions minus targets. Infinite errors are included, NaN is left out.
        weights : ndarray of float, same shape, optional
            At least 0. Default: 1.

        Returns
        -------
        ErrorSums
            All 0 if the sum of the weights is 0.
        """
        counted = np.isfinite(targets) & ~np.isnan(errors)
        values, errors = targets[counted], errors[counted]
        own = np.ones(len(values)) if weights is None else weights[counted]
        weight = float(own.sum())
        if not weight > 0:
            return cls()
        mean = float((own * values).sum()) / weight
        m2 = float((own * (values - mean) ** 2).sum())
        return cls(len(values), weight, float((own * errors).sum()), float((own * errors**2).sum()), mean, m2)

    def merge(self, other: ErrorSums) -> None:
        """Add the sums of other samples to these.

        Notes
        -----
        The squared deviations are merged by the formula of Chan et al. (1983).
        """
        if other.count == 0:
            return
        before, self.weight = self.weight, self.weight + other.weight
        self.count += other.count
        distance = other.target_mean - self.target_mean
        self.target_m2 += other.target_m2 + distance**2 * before * other.weight / self.weight
        self.target_mean += distance * other.weight / self.weight
        self.error += other.error
        self.squared_error += other.squared_error

    @property
    def bias(self) -> float:
        """Mean of prediction - target; NaN without samples."""
        return self.error / self.weight if self.weight else float("nan")

    @property
    def rmse(self) -> float:
        """Root mean square error; NaN without samples."""
        return float(np.sqrt(self.squared_error / self.weight)) if self.weight else float("nan")

    @property
    def r2(self) -> float | None:
        """1 - squared errors / squared deviations of the target from its mean; None for a constant target."""
        return 1.0 - self.squared_error / self.target_m2 if self.target_m2 > 0 else None

    @property
    def explained(self) -> float | None:
        """Share of the target's variance that predictions explain: r2 after removing the bias; None like r2."""
        if self.target_m2 <= 0:
            return None
        return 1.0 - (self.squared_error - self.error**2 / self.weight) / self.target_m2


@dataclass(frozen=True)
class Skill:
    """The errors of one target."""

    name: str
    """Name of the target."""
    units: str
    """Its units; "" if unknown."""
    sums: ErrorSums
    """Sums of its errors, in these units."""

    @property
    def label(self) -> str:
        """The target with its units."""
        return f"{self.name} ({self.units})" if self.units not in ("", "1") else self.name


def render_skill(skills: Sequence[Skill], description: str, kind: str = "", parts: Sequence[str] = ()) -> str:
    """Return HTML: the sentence `description` on the samples, and a row per target; `parts` fill a first column."""
    head = [*([kind] if parts else []), "target", "units", "bias", "RMSE", "r2", "variance explained"]
    rows = [
        [
            one.name,
            one.units or "",
            f"{one.sums.bias:.4g}",
            f"{one.sums.rmse:.4g}",
            "" if one.sums.r2 is None else f"{one.sums.r2:.4f}",
            "" if one.sums.explained is None else f"{100 * one.sums.explained:.2f} %",
        ]
        for one in skills
    ]
    named = [[part, *row] for part, row in zip(parts, rows, strict=True)] if parts else rows
    return f"<p>{escape(description)}</p>{render_rows(head, named)}"


def render_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table; names can break at underscores, and a table that is too wide scrolls."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells = [[f"<td>{escape(cell).replace('_', '_<wbr>')}</td>" for cell in row] for row in rows]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
