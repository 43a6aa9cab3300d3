"""Time levels that are there twice, as in files that overlap: equal ones count once.

T  time levels of all files
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import combinations

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.stations import StationsOfRows
from mpitrain.data.describe.times import ranks_of_stamps, read_stamps
from mpitrain.data.files.variable import texts_of
from mpitrain.data.selection.source import OpenFiles, SourceFile
from mpitrain.data.selection.variable_access import read_part

Levels = npt.NDArray[np.int64]
_EVERYTHING = slice(None)
# Of two files: how many of the times that they share are looked at before all are.
_NUM_PROBES = 3
_FEWEST_DISTINCT = 0.5


def find_repeated(records: Sequence[SourceFile], num_trained_on: int) -> tuple[Levels | None, list[str]]:
    """Return the earlier level (T,) that each time level repeats, bit for bit, or -1; None for none; and lines to say.

    The files held out, those from `num_trained_on` on, are a series of their own. Levels with a time in common and
    other values stay: they may be of members of an ensemble. For one rank.
    """
    ranks = ranks_of_stamps([one.stamps for one in records], [one.num_times for one in records])
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
        lines.append(f"{records[num_trained_on].path}: {num_both} of the times held out are trained on too")
    return (found.of if (found.of >= 0).any() else None), lines


def find_repeated_rows(
    records: Sequence[SourceFile], num_trained_on: int, stations_of: Callable[[], Sequence[StationsOfRows]]
) -> tuple[Levels | None, list[str]]:
    """Return the earlier row (T,) that each row of tables repeats, or -1; None for none; and lines to say.

    Rows repeat others where time, station or place and all columns are equal, also those that are not read: a depth or
    a species may tell rows apart. Where nothing tells stations, most times must be there once: rows of many stations
    may well have equal values. For one rank.
    """
    with closing(OpenFiles()) as handles:
        stamps = [read_stamps(one.time, handles.get(one)) for one in records]
        ranks = ranks_of_stamps(stamps, [one.num_times for one in records])
        if ranks is None or (num_times := int(ranks.max()) + 1) == (num_known := int((ranks >= 0).sum())):
            return None, []
        stations, is_told = _numbers_of_rows(stations_of(), len(ranks))
        if not is_told and num_times < _FEWEST_DISTINCT * num_known:
            return None, []
        num_before = records[num_trained_on].first_time if num_trained_on < len(records) else len(ranks)
        is_held_out = np.arange(len(ranks)) >= num_before
        rows = np.flatnonzero(ranks >= 0)
        rows, groups = _again(rows, ranks[rows], stations[rows] * 2 + is_held_out[rows])
        for name in _columns(records, handles):
            if len(rows):
                rows, groups = _again(rows, groups, _numbers_of_column(records, handles, name, rows))
    of = np.full(len(ranks), -1, dtype=np.int64)
    _, firsts, which = np.unique(groups, return_index=True, return_inverse=True)
    of[rows] = np.where(rows > rows[firsts[which]], rows[firsts[which]], -1)
    num_repeats = int((of >= 0).sum())
    line = f"{records[0].path}: {num_repeats} of {len(ranks)} rows are in it more than once: each counts once"
    return (of, [line]) if num_repeats else (None, [])


def _numbers_of_rows(stations: Sequence[StationsOfRows], num_rows: int) -> tuple[Levels, bool]:
    """Return the number (T,) of each row's station, or place where only that is known; and whether one is."""
    for key in ("stations", "places"):
        told = [getattr(one, key) for one in stations]
        if all(one is not None for one in told):
            return np.unique(np.concatenate(told), return_inverse=True)[1].astype(np.int64), True
    return np.zeros(num_rows, dtype=np.int64), False


def _again(rows: Levels, groups: Levels, numbers: Levels) -> tuple[Levels, Levels]:
    """Return those of the rows (N,) that are in one group with others of the same number, and their new groups."""
    pairs = groups * (int(numbers.max(initial=0)) + 1) + numbers
    _, which, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    again = counts[which] > 1
    return rows[again], which[again]


def _columns(records: Sequence[SourceFile], handles: OpenFiles) -> list[str]:
    """Return the columns that all tables have."""
    held = [
        {one.name for one in handles.get(record).variables.values() if one.shape == (record.num_times,)}
        for record in records
    ]
    return sorted(set.intersection(*held))


def _numbers_of_column(
    records: Sequence[SourceFile], handles: OpenFiles, name: str, rows: Levels
) -> npt.NDArray[np.int64]:  # fmt: skip
    """Return a number for each distinct value of a column at some rows (N,), in rising order."""
    parts = []
    for record in records:
        own = rows[(rows >= record.first_time) & (rows < record.first_time + record.num_times)] - record.first_time
        if len(own):
            parts.append(handles.get(record).read_stored(name, (_EVERYTHING,))[own])
    values = [part if part.dtype.kind in "iufb" else texts_of(part).astype("U") for part in parts]
    return np.unique(np.concatenate(values), return_inverse=True)[1].astype(np.int64)


def _names_of_values(record: SourceFile) -> list[str]:
    """Return the variables with time, each once: a lagged one has the values of the variable itself."""
    variables = record.variables.items()
    return list(
        {(one.info.name, one.axes.fixed): name for name, one in variables if one.axes.time is not None}.values()
    )


def _pairs_with_one_time(records: Sequence[SourceFile], ranks: Levels) -> list[tuple[int, int]]:
    """Return the pairs of files that have a time in common, later and earlier, and (n, n) of one that has it twice."""
    file_of = np.repeat(np.arange(len(records)), [one.num_times for one in records])
    order = np.lexsort((file_of, ranks))
    order = order[ranks[order] >= 0]
    groups = np.split(file_of[order], np.flatnonzero(np.diff(ranks[order])) + 1)
    of_times = {tuple(group.tolist()) for group in groups if len(group) > 1}
    return sorted({(later, earlier) for files in of_times for earlier, later in combinations(files, 2)})


class _Repeats:
    """What is known of levels that repeat others, while pairs of files are compared."""

    def __init__(self, records: Sequence[SourceFile], ranks: Levels) -> None:
        self.of = np.full(len(ranks), -1, dtype=np.int64)
        self.handles, self._records, self._digests = OpenFiles(), records, dict[int, bytes]()
        self._equal, self._others = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        ends = [(one.first_time, one.first_time + one.num_times) for one in records]
        self._levels = [first + np.flatnonzero(ranks[first:stop] >= 0) for first, stop in ends]
        self._ranks, self._names = ranks, _names_of_values(records[0])

    def compare(self, later: int, earlier: int) -> None:
        """Note the levels of a file that repeat those of an earlier one, or earlier ones of its own."""
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
        """Yield levels of a file, none of which repeats another yet, with those of the same time in an earlier one."""
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
        """Return a digest of the values of a level, as single precision, of all variables with time."""
        if level not in self._digests:
            record, digest = self._records[number], hashlib.sha256()
            time = slice(level - record.first_time, level - record.first_time + 1)
            for name in self._names:
                access = record.variables[name]
                stored = read_part(self.handles.get(record), access, time, _EVERYTHING)
                digest.update(np.ascontiguousarray(access.decode(stored), dtype=np.float32).tobytes())
            self._digests[level] = digest.digest()
        return self._digests[level]

    def lines(self) -> Iterator[str]:
        """Yield a line about the levels that are equal, and one about the others, each with two of the files."""
        kinds = (self._equal, "equal values: each counts once"), (self._others, "other values: each counts")
        for pairs, what in kinds:
            found = {pair: count for pair, count in pairs.items() if count}
            if found:
                (first, earlier), count = next(iter(found.items()))
                own, other = self._records[first], self._records[earlier]
                where = "in it more than once" if own is other else f"in {other.path} too"
                rest = sum(found.values()) - count
                more = f", and so are {rest} of other files" if rest else ""
                yield f"{own.path}: {count} of its {own.num_times} times are {where}{more}, with {what}"
