"""Pairs of true and predicted values: some of each target, and their course over time.

b  samples of a block      N  values of each target      O  targets      K  those that are drawn      T  times
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IndexArray = npt.NDArray[np.int64]
MOST_TARGETS, MOST_TIMES, _MOST_PIECES = 6, 500, 20


@dataclass(frozen=True)
class Pairs:
    """Some true and predicted values of the first targets, K of them, at most 6."""

    truth: Array
    """True values (N, K), float64; NaN at weight 0."""
    prediction: Array
    """Predicted values (N, K), float64."""
    index: IndexArray
    """Sample of each row (N,), int64, as its position in the data; empty if it is not known."""

    @classmethod
    def of(cls, truth: Array, prediction: Array, index: IndexArray, rows: IndexArray) -> Pairs:
        """Return the pairs of some values of a block.

        Parameters
        ----------
        truth : ndarray of float, shape (b, O, ...)
            True values of all targets.
        prediction : ndarray of float, shape (b, O, ...)
            Predicted values of all targets.
        index : ndarray of int64, shape (b,)
            Positions of the samples in the data; empty if they are not known.
        rows : ndarray of int64, shape (N,)
            Indices of the values of a target, flattened sample by sample to (b * ...,).

        Returns
        -------
        Pairs
            The values in `rows`, converted to float64.
        """
        columns = [_rows(one)[rows].astype(np.float64) for one in (truth, prediction)]
        points = truth[:, 0].size // max(1, len(truth))
        return cls(columns[0], columns[1], index[rows // max(1, points)] if len(index) else index)

    @classmethod
    def first_of(cls, truth: Array, prediction: Array, index: IndexArray) -> Pairs:
        """Return the pairs of the first samples in the data; none for fields, or if positions are not known.

        Parameters
        ----------
        truth, prediction, index
            As for `of`.

        Returns
        -------
        Pairs
            At most 500 samples, ordered by position.
        """
        rows = np.argsort(index, kind="stable")[:MOST_TIMES] if truth.ndim == 2 else np.empty(0, np.int64)
        return cls.of(truth, prediction, index, rows)

    @classmethod
    def together(cls, parts: Sequence[Pairs]) -> Pairs:
        """Return the pairs of all parts, in their order.

        Parameters
        ----------
        parts : sequence of Pairs
            At least one, all with the same K and all with or all without an index.
        """
        return cls(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("truth", "prediction", "index")))

    def taken(self, rows: IndexArray) -> Pairs:
        """Return the pairs with the indices `rows`, from 0 to N - 1, in this order."""
        return Pairs(self.truth[rows], self.prediction[rows], self.index[rows] if len(self.index) else self.index)

    def at_most(self, most: int) -> Pairs:
        """Return at most `most` pairs of each target, evenly spaced over those with a true value.

        The result has up to K * `most` rows, because targets may lack values in different rows.
        """
        return self.taken(rows_to_show(self.truth, most))

    def first(self) -> Pairs:
        """Return the pairs of the first 500 samples in the data, in their order."""
        return self.taken(np.argsort(self.index, kind="stable")[:MOST_TIMES])


@dataclass(frozen=True)
class Course:
    """Pairs of a time series in the order of time, one sample at each of T times."""

    pairs: Pairs
    """True and predicted values (T, K)."""
    ranks: IndexArray
    """Positions of the times among all times of the data (T,), int64, ascending."""
    dates: Sequence[str]
    """The times as text (T,)."""

    @property
    def description(self) -> str:
        """A sentence on the times that are shown."""
        shown, first, last = len(self.dates), self.dates[0], self.dates[-1]
        which = f"The first {shown:,} times" if shown == MOST_TIMES else f"{shown:,} times"
        cuts = "" if np.all(np.diff(self.ranks) == 1) else "; some times between are left out"
        lines = ", marked by dotted lines" if len(self.pieces()) > 1 else ""
        return f"{which} of these samples, in order: {first} to {last}{cuts}{lines}."

    def pieces(self) -> list[IndexArray]:
        """Return the times in parts without gaps.

        Returns
        -------
        list of ndarray of int64
            Indices of the times, 0 to T - 1, ascending; a single part if there would be more than 20.
        """
        every = np.arange(len(self.ranks))
        found = np.split(every, np.flatnonzero(np.diff(self.ranks) > 1) + 1)
        return found if len(found) <= _MOST_PIECES else [every]


def rows_to_show(truth: Array, most: int) -> IndexArray:
    """Return the indices of at most `most` finite values of each of the first 6 targets, evenly spaced.

    Parameters
    ----------
    truth : ndarray of float, shape (b, O, ...)
        Values of all targets.
    most : int
        Number of values for each target; 0: none.

    Returns
    -------
    ndarray of int64, shape (N,)
        Indices of the values of a target, flattened sample by sample to (b * ...,): those of all targets together,
        ascending and without repetition.
    """
    found = [np.empty(0, np.int64)]
    for column in _rows(truth).T if most else ():
        numbers = np.flatnonzero(np.isfinite(column))
        found.append(numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), most)).astype(np.int64)])
    return np.unique(np.concatenate(found))


def draw_pairs(pairs: Pairs | None, course: Course | None, labels: Sequence[str]) -> dict[str, str]:
    """Return pictures of predictions against truth, and over time, for the first 6 targets that have pairs.

    Parameters
    ----------
    pairs : Pairs or None
        Values of the first picture; None: no pictures.
    course : Course or None
        Values over time; None: no picture of these.
    labels : sequence of str
        Each target with its units.

    Returns
    -------
    dict of str to str
        HTML with SVG by heading; empty if no target has a finite pair.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    from mpitrain.observe.plots import plot_course, plot_prediction

    if pairs is None:
        return {}
    drawn = [number for number in range(len(labels[:MOST_TARGETS])) if _finite(pairs, number).size]
    more = f"<p>The first {MOST_TARGETS} of {len(labels)} targets.</p>" if len(labels) > MOST_TARGETS else ""
    parts = {"Prediction against truth": [
        plot_prediction(_finite(pairs, one), labels[one], f"prediction-{one}") for one in drawn
    ]}  # fmt: skip
    if course is not None:
        pieces, values = course.pieces(), np.stack([course.pairs.truth, course.pairs.prediction])
        parts["Prediction over time"] = [f"<p>{escape(course.description)}</p>"]
        for one in drawn:
            picture = plot_course(values[:, :, one], pieces, course.dates, f"course-{one}")
            parts["Prediction over time"].append(f"<p>{escape(labels[one])}</p>{picture}")
    return {heading: more + "".join(pictures) for heading, pictures in parts.items() if drawn}


def _finite(pairs: Pairs, target: int) -> Array:
    """Return truth and prediction of a target (2, N) where both are finite."""
    both = np.stack([pairs.truth[:, target], pairs.prediction[:, target]])
    return both[:, np.isfinite(both).all(axis=0)]


def _rows(values: Array) -> Array:
    """Return the values (b, O, ...) of the first targets as rows (b * ..., K)."""
    shown = values[:, :MOST_TARGETS]
    return np.moveaxis(shown, 1, -1).reshape(-1, shown.shape[1])
