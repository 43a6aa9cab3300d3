"""Parts of the samples for which skill is reported: years, months or days, and the groups of `data.group`.

N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.data.selection.coordinates import dates_of_levels, known_ranks
from mpitrain.data.selection.groups import Texts, groups_of
from mpitrain.data.selection.source import SampleSource

_FEWEST_PERIODS = 3
_MOST_TIMES = 1_000_000  # finding the dates of this many times takes some seconds
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleParts:
    """The parts of one kind, "time" or "group": their `names`, and the part of each time level or position.

    `numbers` are indices in `names`, -1 for no part: (T,) for time levels if `by_level`, otherwise (J * I,) for
    positions inside a level.
    """

    kind: str
    names: list[str]
    numbers: IndexArray
    by_level: bool

    def rows(self, level: IndexArray, inside: IndexArray) -> Iterator[tuple[tuple[str, str], IndexArray]]:
        """Yield kind and name of each part that has samples, and the indices of these samples in their order.

        `level` (N,) and `inside` (N,) are each sample's time level and its position inside the level.
        """
        numbers = self.numbers[level if self.by_level else inside]
        order = np.argsort(numbers, kind="stable")
        found, first = np.unique(numbers[order], return_index=True)
        for number, rows in zip(found.tolist(), np.split(order, first[1:]), strict=True):
            if number >= 0:
                yield (self.kind, self.names[number]), rows


def parts_of(source: SampleSource, group: str | None) -> list[SampleParts]:
    """Return the periods of samples that have dates, and the groups of `data.group`.

    One rank only. Raises DataError if a file cannot be read, or the groups do not fit the samples.
    """
    found = [] if group is None else [_numbered("group", *groups_of(source, group))]
    periods = _periods(source)
    found += [] if periods is None else [_numbered("time", periods, by_level=True)]
    return [one for one in found if len(one.names) > 1]


def _periods(source: SampleSource) -> Texts | None:
    """Return the period of each time level (T,), "" for a level without a time.

    Periods are years if there are three or more, otherwise months if there are three or more, otherwise days. None if
    no dates are known, or there are too many times.
    """
    ranks = known_ranks(source)
    if ranks is None or not 0 <= ranks.max() < _MOST_TIMES:
        return None
    level_of = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    level_of[ranks[ranks >= 0]] = np.flatnonzero(ranks >= 0)
    texts = [date.partition(" ")[0] for date in dates_of_levels(source, level_of)]  # year-month-day
    for num_cut in (2, 1):
        shorter = [text.rsplit("-", num_cut)[0] for text in texts]
        if len(set(shorter)) >= _FEWEST_PERIODS:
            texts = shorter
            break
    return np.array([*texts, ""])[ranks] if texts else None


def _numbered(kind: str, texts: Texts, by_level: bool) -> SampleParts:
    names = sorted(set(texts.tolist()) - {""})
    numbers = np.where(texts == "", -1, np.searchsorted(names, texts))
    return SampleParts(kind, names, numbers, by_level)
