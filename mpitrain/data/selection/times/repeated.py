"""Time levels that occur twice, as in files that overlap: equal ones count once.

T  time levels of all files
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.times import ranks_of_stored_times
from mpitrain.data.selection.source import OpenFiles, SourceFile
from mpitrain.data.selection.variable_access import read_part

Levels = npt.NDArray[np.int64]
_EVERY_ROW = slice(None)
# Of the times that two files share, this many are compared first; if the values differ at all of them, the others are
# not compared.
_NUM_PROBES = 3


def find_repeated(records: Sequence[SourceFile], num_trained_on: int) -> tuple[Levels | None, list[str]]:
    """Return the earlier level (T,) that each time level repeats bit for bit, or -1; None if none does; and notices.

    The held-out files, those from `num_trained_on` on, are a separate series. Levels with equal times but different
    values are kept: they may belong to members of an ensemble. One rank only.
    """
    ranks = ranks_of_stored_times([one.stamps for one in records], [one.num_times for one in records])
    if ranks is None or len(np.unique(ranks[ranks >= 0])) == int((ranks >= 0).sum()):
        return None, []
    found = _Repeats(records, ranks)
    for later, earlier in _pairs_with_one_time(records, ranks):
        if (later < num_trained_on) == (earlier < num_trained_on):
            found.compare(later, earlier)
    found.handles.close()
    border = records[num_trained_on].first_time if num_trained_on < len(records) else len(ranks)
    both = np.intersect1d(ranks[:border], ranks[border:])
    num_both = int((both >= 0).sum())
    lines = list(found.lines())
    if num_both:
        lines.append(f"{records[num_trained_on].path}: {num_both} of the held-out times are also trained on")
    return (found.of if (found.of >= 0).any() else None), lines


def _pairs_with_one_time(records: Sequence[SourceFile], ranks: Levels) -> list[tuple[int, int]]:
    """Return the pairs (later, earlier) of files that share a time, and (n, n) for a file that has a time twice."""
    file_of = np.repeat(np.arange(len(records)), [one.num_times for one in records])
    order = np.lexsort((file_of, ranks))
    order = order[ranks[order] >= 0]
    groups = np.split(file_of[order], np.flatnonzero(np.diff(ranks[order])) + 1)
    of_times = {tuple(group.tolist()) for group in groups if len(group) > 1}
    return sorted({(later, earlier) for files in of_times for earlier, later in combinations(files, 2)})


class _Repeats:
    """The levels that repeat others, found by comparing pairs of files."""

    def __init__(self, records: Sequence[SourceFile], ranks: Levels) -> None:
        self.of = np.full(len(ranks), -1, dtype=np.int64)
        self.handles, self._records, self._digests = OpenFiles(), records, dict[int, bytes]()
        self._equal, self._others = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        ends = [(one.first_time, one.first_time + one.num_times) for one in records]
        self._levels = [first + np.flatnonzero(ranks[first:stop] >= 0) for first, stop in ends]
        self._ranks, variables = ranks, records[0].variables.items()
        # Each variable once: a lagged variable has the values of the variable itself.
        of_values = {(one.info.name, one.axes.fixed): name for name, one in variables if one.axes.time is not None}
        self._names = list(of_values.values())

    def compare(self, later: int, earlier: int) -> None:
        """Record the levels of a file that repeat those of an earlier file, or earlier levels of the same file."""
        pairs = list(self._shared(later, earlier))
        probes = {0, len(pairs) // 2, len(pairs) - 1} if len(pairs) > _NUM_PROBES else set(range(len(pairs)))
        if not any(self._are_equal(later, earlier, *pairs[number]) for number in probes):
            self._others[later, earlier] += len(pairs)
            return
        for level, before in pairs:
            if self._are_equal(later, earlier, level, before):
                self.of[level] = before
                self._equal[later, earlier] += 1
            else:
                self._others[later, earlier] += 1

    def _shared(self, later: int, earlier: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of levels of equal time, of a file and of an earlier one, without those known as repeats."""
        own = self._levels[later][self.of[self._levels[later]] < 0]
        if later == earlier:
            _, firsts, which = np.unique(self._ranks[own], return_index=True, return_inverse=True)
            before = own[firsts[which]]
            yield from zip(own[own > before].tolist(), before[own > before].tolist(), strict=True)
            return
        others = self._levels[earlier][self.of[self._levels[earlier]] < 0]
        _, here, there = np.intersect1d(self._ranks[own], self._ranks[others], return_indices=True)
        yield from zip(own[here].tolist(), others[there].tolist(), strict=True)

    def _are_equal(self, later: int, earlier: int, level: int, before: int) -> bool:
        return self._digest(later, level) == self._digest(earlier, before)

    def _digest(self, number: int, level: int) -> bytes:
        """Return a digest of the values, in single precision, of all variables with time at a level."""
        if level not in self._digests:
            record, digest = self._records[number], hashlib.sha256()
            time = slice(level - record.first_time, level - record.first_time + 1)
            for name in self._names:
                access = record.variables[name]
                stored = read_part(self.handles.get(record), access, time, _EVERY_ROW)
                digest.update(np.ascontiguousarray(access.decode(stored), dtype=np.float32).tobytes())
            self._digests[level] = digest.digest()
        return self._digests[level]

    def lines(self) -> Iterator[str]:
        """Yield a line about the levels that are equal, and one about the others, each with two files as example."""
        kinds = (self._equal, "equal values: each counts once"), (self._others, "different values: all of them count")
        for pairs, result in kinds:
            found = {pair: count for pair, count in pairs.items() if count}
            if found:
                (first, earlier), count = next(iter(found.items()))
                own, other = self._records[first], self._records[earlier]
                location = "in it more than once" if own is other else f"also in {other.path}"
                rest = sum(found.values()) - count
                more = f", and {rest} times of other files are repeated" if rest else ""
                yield f"{own.path}: {count} of its {own.num_times} times are {location}{more}, with {result}"
