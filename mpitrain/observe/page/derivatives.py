"""Derivatives of a network's outputs with respect to its inputs: mean and standard deviation over samples.

N  samples   O  targets   F  inputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.observe.page.skill import render_rows

Array = npt.NDArray[Any]
MOST_LISTED = 60
"""Most derivatives listed in a table; more are drawn as colours."""


@dataclass
class DerivativeSums:
    """Mean (O, F) and sum of squared deviations (O, F) of derivatives over samples, merged in float64."""

    count: int
    mean: Array
    m2: Array

    @classmethod
    def of(cls, jacobian: Array) -> DerivativeSums:
        """Return the sums of derivatives (N, O, F), N > 0."""
        values = jacobian.astype(np.float64)
        mean = values.mean(axis=0)
        return cls(len(values), mean, ((values - mean) ** 2).sum(axis=0))

    def merge(self, other: DerivativeSums) -> None:
        """Add the sums of other samples."""
        total = self.count + other.count
        distance = other.mean - self.mean
        self.m2 = self.m2 + other.m2 + distance**2 * (self.count * other.count / total)
        self.mean = self.mean + distance * (other.count / total)
        self.count = total

    @property
    def spread(self) -> Array:
        """Standard deviation over the samples (O, F)."""
        return np.asarray(np.sqrt(self.m2 / self.count))


@dataclass(frozen=True)
class Derivatives:
    """Derivatives with names and units of targets and inputs; a unit is "" if unknown."""

    sums: DerivativeSums
    target_names: Sequence[str]
    input_names: Sequence[str]
    target_units: Sequence[str]
    input_units: Sequence[str]


def render_derivatives(found: Derivatives) -> str:
    """Return HTML: a table of mean and spread; for many derivatives a picture of the means, scaled in each row."""
    text = f"Mean and standard deviation over {found.sums.count:,} samples."
    if found.sums.mean.size > MOST_LISTED:
        from mpitrain.observe.plots import plot_derivatives

        text = (
            f"Over {found.sums.count:,} samples. There are {found.sums.mean.size:,} derivatives: only their means are "
            "shown, as shares of each target's largest."
        )
        return f"<p>{text}</p>{plot_derivatives(found.sums.mean, found.target_names, found.input_names)}"
    spread = found.sums.spread
    rows = [
        (f"{target} by {name}", f"{found.sums.mean[row, column]:.4g}", f"{spread[row, column]:.4g}",
         _quotient(found.target_units[row], found.input_units[column]))
        for row, target in enumerate(found.target_names)
        for column, name in enumerate(found.input_names)
    ]  # fmt: skip
    return f"<p>{escape(text)}</p>{render_rows(('derivative of', 'mean', 'spread', 'units'), rows)}"


def _quotient(target: str, name: str) -> str:
    if not target or not name:
        return ""
    return target if name == "1" else f"{target} / {name if name.isalnum() else f'({name})'}"
