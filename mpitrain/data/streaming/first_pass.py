"""First pass over a source: the number of samples in each chunk, and the statistics of the training samples.

C  chunks      N  samples      F  inputs      O  targets      P  real ranks

Every chunk c is read once, by rank c mod P, regardless of the virtual rank to which it belongs. Whether a sample is
held out depends on its index among all usable samples, so the ranks exchange their counts while the samples are in
memory. The moments of the chunks are then merged in one pairwise tree: the same bits for any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.data.dataset.exchange import keep_under_limit
from mpitrain.data.dataset.split_rule import TRAINING, VALIDATION, Roles, SplitRule
from mpitrain.data.moments import Moments, merge_in_tree, moments_of_samples
from mpitrain.data.samples import IndexArray, LeftOut, Samples, missing_of, valid_rows
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.streaming.read_ahead import ReadAhead
from mpitrain.errors import DataError

Item = TypeVar("Item")
# Numbers of training and validation samples of a chunk, moments of the former, and the checksum of the bytes read.
_ChunkMoments = tuple[int, int, Moments, int]
_NUM_COUNTS = 3 + len(LeftOut._fields)
Counts = tuple[int, ...]


@dataclass(frozen=True)
class ChunkCounts:
    """Numbers of samples of each chunk, each (C,), the same on all ranks.

    `selected` by the rules, `kept` of these under `max_patterns`, `valid` (usable) of these, `training` and
    `validation` of these.
    """

    selected: IndexArray
    kept: IndexArray
    valid: IndexArray
    training: IndexArray
    validation: IndexArray


@dataclass(frozen=True)
class FirstPass:
    """Result of the first pass; the same on all ranks, for any number of ranks.

    `num_missing` (F + O,) counts the missing values of the kept samples, `left_out` the points of all chunks that are
    not samples. `training` are the moments of F inputs and O targets over the training samples. `stored_sums` (C,) are
    the checksums of the bytes that were read for each chunk (see `StoredSum`).
    """

    counts: ChunkCounts
    num_missing: IndexArray
    left_out: LeftOut
    training: Moments
    stored_sums: npt.NDArray[np.uint64]


class ChunkSplitter:
    """Splits the samples of a chunk into training and validation samples, by the counts of the first pass."""

    def __init__(self, first_pass: FirstPass, rule: SplitRule) -> None:
        self._counts, self._rule, self._stored_sums = first_pass.counts, rule, first_pass.stored_sums
        self._first_selected, self._first_valid = (
            np.cumsum(one) - one for one in (self._counts.selected, self._counts.valid)
        )

    def read(self, source: SampleSource, chunk: int) -> tuple[Samples, IndexArray, IndexArray]:
        """Return a chunk's samples, and the positions of its training samples and of its held-out samples.

        Raises DataError if the chunk has changed since the first pass.
        """
        samples, stored_sum = source.read_with_sum(source.chunks[chunk])
        if len(samples) == self._counts.selected[chunk] and stored_sum == self._stored_sums[chunk]:
            total = int(self._counts.selected.sum())
            kept = keep_under_limit(source, samples, int(self._first_selected[chunk]), total)
            is_whole = self._counts.valid[chunk] == len(kept)
            valid = np.arange(len(kept)) if is_whole else np.flatnonzero(valid_rows(kept))
            if len(valid) == self._counts.valid[chunk]:
                roles = self._rule.roles(kept.grid_index[valid], int(self._first_valid[chunk]))
                return kept, valid[roles == TRAINING], valid[roles == VALIDATION]
        path = source.files[source.chunks[chunk].file].path
        raise DataError(
            f"{path}: its content has changed since it was first read, but not its size and modification time; results "
            "would mix two data sets: start again with files that are not being written, or check the disk"
        )


def take_where(samples: Samples, chosen: npt.NDArray[np.bool_]) -> Samples:
    """Return the `chosen` (N,) samples; `samples` itself if all are chosen."""
    return samples if chosen.all() else samples.take(np.flatnonzero(chosen))


def make_first_pass(source: SampleSource, ranks: Ranks, rule: SplitRule) -> FirstPass:
    """Read every chunk once, on one rank each, and return counts and statistics of the samples. Collective.

    With `max_patterns` all chunks are read once more before that, because the samples that are kept depend on the total
    number. Raises DataError, on all ranks, if a file cannot be read or no sample is selected.
    """
    rows, found = list[Counts](), dict[int, _ChunkMoments]()
    for own, counts in split_chunks(source, ranks, rule):
        rows += counts
        if own is not None:
            training, num_validation = own.of_role(TRAINING), int((own.roles == VALIDATION).sum())
            found[own.number] = len(training), num_validation, moments_of_samples(training), own.stored_sum
    first_pass = _together(rows, found, source, ranks)
    num_values = int(first_pass.counts.kept.sum()) * (math.prod(source.grid_shape) if source.kind == "fields" else 1)
    measured = num_values - first_pass.num_missing
    ranks.on_all_ranks(lambda: source.check_selection(int(first_pass.counts.selected.sum()), measured.tolist()))
    return first_pass


def count_selected(source: SampleSource, ranks: Ranks) -> list[int]:
    """Return the number of selected samples of each chunk; each chunk is read once, on one rank. Collective."""
    counts = []
    for _, samples, _ in _own_chunks(source, ranks):
        counts += ranks.gather_object(None if samples is None else len(samples))
    return [count for count in counts if count is not None]


@dataclass(frozen=True)
class SplitChunk:
    """The usable samples of a chunk, the index of the first one among all usable, their roles (N,), and a checksum."""

    number: int
    usable: Samples
    first: int
    roles: Roles
    stored_sum: int

    def of_role(self, role: int, rule: SplitRule | None = None) -> Samples:
        """Return the samples of a role; `rule` replaces the rule by which `roles` were computed."""
        roles = self.roles if rule is None else rule.roles(self.usable.grid_index, self.first)
        return take_where(self.usable, roles == role)


def split_chunks(
    source: SampleSource, ranks: Ranks, rule: SplitRule
) -> Iterator[tuple[SplitChunk | None, list[Counts]]]:
    """Yield in each turn this rank's chunk, None if it has no more, and the counts of all ranks' chunks. Collective.

    The counts of a chunk are the samples selected, kept under `max_patterns` and usable, the points left out, and the
    missing values of each feature. With `max_patterns` all chunks are read once before that. Raises DataError, on all
    ranks, if a file cannot be read.
    """
    total = None if source.max_patterns is None else sum(count_selected(source, ranks))
    num_selected = num_usable = 0
    for number, samples, stored_sum in _own_chunks(source, ranks):
        if total is not None:
            selected = ranks.gather_object(0 if samples is None else len(samples))
            first, num_selected = num_selected + sum(selected[: ranks.rank]), num_selected + sum(selected)
        counts = usable = None
        if samples is not None:
            kept = samples if total is None else keep_under_limit(source, samples, first, total)
            usable = take_where(kept, valid_rows(kept))
            counts = (len(samples), len(kept), len(usable), *samples.left_out, *missing_of(kept))
        rows = [row for row in ranks.gather_object(counts) if row is not None]
        own = None
        if number is not None and usable is not None:
            first_usable = num_usable + sum(row[2] for row in rows[: ranks.rank])
            own = SplitChunk(number, usable, first_usable, rule.roles(usable.grid_index, first_usable), stored_sum)
        num_usable += sum(row[2] for row in rows)
        yield own, rows


def _together(rows: list[Counts], own: dict[int, _ChunkMoments], source: SampleSource, ranks: Ranks) -> FirstPass:
    """Gather the results of all ranks and merge the moments in the order of the chunks. Collective."""
    num_features = len(source.input_names) + len(source.target_names)
    found = {chunk: moments for part in ranks.gather_object(own) for chunk, moments in part.items()}
    in_order = [found[chunk] for chunk in range(len(found))]
    counts = np.array(rows, dtype=np.int64).reshape(-1, _NUM_COUNTS + num_features)
    training, validation = np.array([one[:2] for one in in_order], dtype=np.int64).reshape(-1, 2).T
    totals = counts.sum(axis=0)
    return FirstPass(
        ChunkCounts(counts[:, 0], counts[:, 1], counts[:, 2], training, validation),
        totals[_NUM_COUNTS:],
        LeftOut(*totals[3:_NUM_COUNTS].tolist()),
        merge_in_tree([one[2] for one in in_order], num_features),
        np.array([one[3] for one in in_order], dtype=np.uint64),
    )


def _own_chunks(source: SampleSource, ranks: Ranks) -> Iterator[tuple[int | None, Samples | None, int]]:
    """Yield this rank's chunks, samples and checksums; (None, None, 0) if only other ranks have more. Collective."""
    num_chunks, num_ranks, rank = len(source.chunks), ranks.world_size, ranks.rank
    own = range(rank, num_chunks, num_ranks)
    threads = ReadAhead(source, lambda by_thread, chunk: by_thread.read_with_sum(by_thread.chunks[chunk]))
    with closing(threads):
        reading = threads.in_order(own, ahead=1)
        for turn in range(-(-num_chunks // num_ranks)):
            has_one = turn < len(own)
            samples, stored_sum = ranks.on_all_ranks(partial(next, reading) if has_one else lambda: (None, 0))
            yield (own[turn] if has_one else None), samples, stored_sum
