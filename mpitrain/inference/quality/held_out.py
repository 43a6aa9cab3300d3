"""Errors of an ensemble on its members' held-out samples, by fold, time and group, in one pass over the data.

M  members of a fold      N  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data import VALIDATION, Samples, SampleSource, SplitRule
from mpitrain.data.dataset.in_memory import padded_columns
from mpitrain.data.dataset.sample_parts import SampleParts, parts_of
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.streaming.first_pass import SplitChunk, split_chunks
from mpitrain.inference.arithmetic import choose_arithmetic
from mpitrain.inference.quality.evaluation import counted_targets
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, GridErrors, Pairs, rows_to_show

_MOST_SHOWN = 20_000  # values of each target that are kept, at most
_MOST_PLACES = 1_000_000  # of a grid, up to which errors are added up by grid point
_Array = npt.NDArray[np.float64]


@dataclass
class HeldOutSums:
    """Sums over held-out samples.

    `by_part`: errors of each target, by kind of part ("fold", "group", "time") and its name. `errors`, `spreads`: of
    the first target, errors of the members' mean and spread over the members by grid point; each list has at most one
    entry. `first`: pairs of truth and the members' mean for the first samples. `pairs`: the same for some samples of
    each chunk; `values` (M, N): the members' predictions of the first target there.
    """

    by_part: dict[tuple[str, str], list[ErrorSums]] = field(default_factory=dict)
    errors: list[GridErrors] = field(default_factory=list)
    spreads: list[GridErrors] = field(default_factory=list)
    first: list[Pairs] = field(default_factory=list)
    pairs: list[Pairs] = field(default_factory=list)
    values: list[_Array] = field(default_factory=list)

    def merge(self, other: HeldOutSums) -> None:
        """Add the sums of other samples; the same order gives the same bits."""
        for key, more in other.by_part.items():
            for total, one in zip(self.by_part.setdefault(key, [ErrorSums() for _ in more]), more, strict=True):
                total.merge(one)
        for places, more_places in ((self.errors, other.errors), (self.spreads, other.spreads)):
            both = [*places, *more_places]
            places[:] = [GridErrors.together(both)] if both else []
        both_first = [*self.first, *other.first]
        self.first[:] = [Pairs.together(both_first).first()] if both_first else []
        self.pairs += other.pairs
        self.values += other.values


def sum_held_out(
    ranks: Ranks, source: SampleSource, folds: Mapping[str, tuple[DataSection, Sequence[StoredNetwork]]]
) -> HeldOutSums:  # fmt: skip
    """Return the errors of the mean of each fold's networks on the fold's held-out samples of `source`. Collective.

    `folds`: section `data` and networks by the name of the fold, "" without folds. All ranks read the data once, or
    twice with `data.max_patterns`; the bits are the same on any number of ranks. Raises DataError on all ranks if a
    file cannot be read, ConfigError if the samples cannot be split as requested.
    """
    data = {fold: section for fold, (section, _) in folds.items()}
    rules = ranks.on_root(lambda: {fold: plan_split(section, source) for fold, section in data.items()})
    total = HeldOutSums()
    if source.first_held_out is None and not any(rule.holds_out for rule in rules.values()):
        return total
    parts = ranks.on_root(lambda: parts_of(source, next(iter(data.values())).group))
    num_shown = -(-_MOST_SHOWN // (len(source.chunks) * len(folds)))
    members = ranks.on_all_ranks(
        lambda: [_Fold(fold, rules[fold], some, source, num_shown) for fold, (_, some) in folds.items()]
    )
    ranks.set_torch_threads()  # used if the arithmetic is torch's
    for chunk, _ in split_chunks(source, ranks, members[0].rule):
        for found in ranks.gather_object(ranks.on_all_ranks(partial(_sums_of_chunk, members, parts, chunk))):
            total.merge(found)
    return total


def _sums_of_chunk(folds: Sequence[_Fold], parts: Sequence[SampleParts], chunk: SplitChunk | None) -> HeldOutSums:
    total = HeldOutSums()
    for fold in folds:
        held = None if chunk is None else chunk.of_role(VALIDATION, fold.rule)
        if held is not None and len(held):
            total.merge(fold.sums(held, parts))
    return total


class _Fold:
    """The networks of a fold, and the rule that selects its held-out samples."""

    def __init__(
        self, name: str, rule: SplitRule, networks: Sequence[StoredNetwork], source: SampleSource, num_shown: int
    ) -> None:
        self.rule, self._name, self._first, self._num_shown = rule, name, networks[0], num_shown
        self._are_fields, self._places_a_level = source.kind == "fields", 1
        if source.layout.is_grid:
            self._places_a_level = int(np.prod(source.grid_shape))
        self._with_places = 1 < self._places_a_level <= _MOST_PLACES
        self._arithmetics = [choose_arithmetic(one, "auto", source.num_points) for one in networks]

    def sums(self, held: Samples, parts: Sequence[SampleParts]) -> HeldOutSums:
        """Return the sums over some of the fold's held-out samples."""
        inputs, targets, weights = (one[:-1] for one in padded_columns(held, self._first.input_mean, self._first.dtype))
        truth, weights = counted_targets(targets, weights)
        values = np.stack([one.evaluate(inputs, False)[0] for one in self._arithmetics]).astype(np.float64)
        errors = values.mean(0) - truth
        level, inside = np.divmod(held.grid_index, 1 if self._are_fields else self._places_a_level)
        found = HeldOutSums()
        of_fold = ("fold", self._name), np.arange(len(held))
        for key, rows in (of_fold, *(row for one in parts for row in one.rows(level, inside))):
            columns = zip(*(np.moveaxis(one[rows], 1, 0) for one in (truth, errors, weights)), strict=True)
            found.by_part[key] = [ErrorSums.of(*one) for one in columns]
        if self._with_places:
            places = np.tile(np.arange(self._places_a_level), len(held)) if self._are_fields else inside
            found.errors.append(GridErrors.of(places, errors[:, 0].reshape(-1)))
            if len(values) > 1:
                spreads = np.where(np.isnan(truth[:, 0]), np.nan, values[:, :, 0].std(0, ddof=1))
                found.spreads.append(GridErrors.of(places, spreads.reshape(-1)))
        shown, mean = rows_to_show(truth, self._num_shown), values.mean(0)
        found.first.append(Pairs.first_of(truth, mean, held.grid_index))
        found.pairs.append(Pairs.of(truth, mean, held.grid_index, shown))
        found.values.append(values[:, :, 0].reshape(len(values), -1)[:, shown])
        return found
