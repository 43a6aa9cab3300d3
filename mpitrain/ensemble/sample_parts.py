"""Parts of the samples by which the skill of an ensemble is told: stretches of time, and groups of `data.group`.

T  time levels      J, I  rows and columns      N  samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mpitrain.data import SampleSource
from mpitrain.data.selection.coordinates import dates_of_levels, known_ranks
from mpitrain.data.selection.groups import groups_of

_FEWEST_PERIODS = 3


@dataclass(frozen=True)
class SampleParts:
    """Which part samples belong to: `numbers` (T,), or of places (J * I,) where not `by_level`; -1 of none."""

    kind: Literal["time", "group"]
    names: Sequence[str]
    numbers: npt.NDArray[np.int64]
    by_level: bool

    def of(self, level: npt.NDArray[np.int64], inside: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number (N,) of each sample's part, by its time level and its position inside of it."""
        numbers: npt.NDArray[np.int64] = self.numbers[level if self.by_level else inside]
        return numbers


def parts_of(source: SampleSource, group: str | None) -> list[SampleParts]:
    """Return the periods of a source's samples, where it has dates, and its groups. For one rank. Raises DataError."""
    found = [_periods(source)]
    if group is not None:
        groups, by_level = groups_of(source, group)
        found.append(_numbered("group", groups, by_level))
    return [one for one in found if one is not None and len(one.names) > 1]


def _periods(source: SampleSource) -> SampleParts | None:
    """Return the year, month or day of each time level: the longest of them of which there are three, else two."""
    ranks = known_ranks(source)
    if ranks is None or not (ranks >= 0).any():
        return None
    known = np.flatnonzero(ranks >= 0)
    level_of = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    level_of[ranks[known]] = known
    days = [date.partition(" ")[0] for date in dates_of_levels(source, level_of)]
    if not days:
        return None
    texts: list[str] = []
    for num_cut in (2, 1, 0):  # of year-month-day
        texts = [day.rsplit("-", num_cut)[0] for day in days]
        if len(set(texts)) >= _FEWEST_PERIODS:
            break
    return _numbered("time", np.array([*texts, ""])[ranks], by_level=True)


def _numbered(kind: Literal["time", "group"], texts: npt.NDArray[np.str_], by_level: bool) -> SampleParts:
    names, numbers = np.unique(texts, return_inverse=True)
    return SampleParts(kind, names.tolist(), np.where(texts == "", -1, numbers), by_level)
