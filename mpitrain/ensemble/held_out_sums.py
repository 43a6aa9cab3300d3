"""One pass over the samples that members hold out: the errors of the members' mean, summed by fold, time and group.

M  members of a fold      N  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.data import VALIDATION, Samples, SampleSource, SplitRule
from mpitrain.data.dataset.in_memory import padded_columns
from mpitrain.data.streaming.first_pass import SplitChunk, split_chunks
from mpitrain.ensemble.sample_parts import SampleParts
from mpitrain.inference.arithmetic import Arithmetic, choose_arithmetic
from mpitrain.inference.quality.evaluation import counted_targets, spread
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, PlaceErrors

Values = npt.NDArray[np.float64]


@dataclass
class HeldOutSums:
    """What held-out samples come to.

    `by_part`: errors of each target, by kind ("fold", "time", "group") and name. Of the first target: `errors` and the
    members' `spreads` at each place, and of some samples the `truth` (N,) and the members' `values` (M, N), in parts.
    """

    by_part: dict[tuple[str, str], list[ErrorSums]] = field(default_factory=dict)
    errors: list[PlaceErrors] = field(default_factory=list)
    spreads: list[PlaceErrors] = field(default_factory=list)
    truth: list[Values] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)

    def merge(self, other: HeldOutSums) -> None:
        """Add those of other samples: in the same order the same bits."""
        for key, more in other.by_part.items():
            for total, one in zip(self.by_part.setdefault(key, [ErrorSums() for _ in more]), more, strict=True):
                total.merge(one)
        for places, more_places in ((self.errors, other.errors), (self.spreads, other.spreads)):
            both = [*places, *more_places]
            places[:] = [PlaceErrors.together(both)] if both else []
        self.truth += other.truth
        self.values += other.values


@dataclass(frozen=True)
class HeldOutPlan:
    """What is told of which samples: those that the rule of each fold ("" without folds) holds out.

    At most `num_shown` of a chunk and fold give values; places are told `with_places`.
    """

    rules: Mapping[str, SplitRule]
    parts: Sequence[SampleParts]
    num_shown: int
    with_places: bool


def sum_held_out(
    ranks: Ranks, source: SampleSource, plan: HeldOutPlan, networks: Mapping[str, Sequence[StoredNetwork]]
) -> HeldOutSums:  # fmt: skip
    """Read all samples once, by all ranks, and sum what the `networks` of each fold tell. Collective.

    The same bits on any number of ranks. Raises DataError, on all ranks, where a file cannot be read.
    """
    folds = {fold: _FoldMembers(fold, some, source) for fold, some in networks.items()}
    total = HeldOutSums()
    for chunk, _ in split_chunks(source, ranks, plan.rules[next(iter(folds))]):
        for found in ranks.gather_object(ranks.on_all_ranks(partial(_of_chunk, plan, folds, chunk))):
            total.merge(found)
    return total


class _FoldMembers:
    """The networks of one fold, and how each is computed."""

    def __init__(self, fold: str, networks: Sequence[StoredNetwork], source: SampleSource) -> None:
        self._fold, self._first, self._are_fields = fold, networks[0], source.kind == "fields"
        self._places_a_level = int(np.prod(source.grid_shape)) if source.layout.is_grid else 1
        self._arithmetics: list[Arithmetic] = [choose_arithmetic(one, "auto", source.num_points) for one in networks]

    def sums(self, plan: HeldOutPlan, held: Samples) -> HeldOutSums:
        """Return what held-out samples, at least one, come to."""
        inputs, targets, weights = (one[:-1] for one in padded_columns(held, self._first.input_mean, self._first.dtype))
        truth, weights = counted_targets(targets, weights)
        values = np.stack([one.evaluate(inputs, False)[0] for one in self._arithmetics]).astype(np.float64)
        errors = values.mean(0) - truth
        level, inside = np.divmod(held.grid_index, 1 if self._are_fields else self._places_a_level)
        found = HeldOutSums()
        for key, rows in [(("fold", self._fold), np.ones(len(held), bool)), *_rows_of_parts(plan.parts, level, inside)]:
            columns = zip(*(np.moveaxis(one[rows], 1, 0) for one in (truth, errors, weights)), strict=True)
            found.by_part[key] = [ErrorSums.of(*one) for one in columns]
        if plan.with_places:
            places = np.tile(np.arange(self._places_a_level), len(held)) if self._are_fields else inside
            found.errors.append(PlaceErrors.of(places, errors[:, 0].reshape(-1)))
            if len(values) > 1:
                differences = np.where(np.isnan(truth[:, 0]), np.nan, values[:, :, 0].std(0, ddof=1))
                found.spreads.append(PlaceErrors.of(places, differences.reshape(-1)))
        counted = np.flatnonzero(np.isfinite(truth[:, 0].reshape(-1)))
        shown = counted[spread(len(counted), plan.num_shown)]
        found.truth.append(truth[:, 0].reshape(-1)[shown])
        found.values.append(values[:, :, 0].reshape(len(values), -1)[:, shown])
        return found


def _of_chunk(plan: HeldOutPlan, folds: Mapping[str, _FoldMembers], chunk: SplitChunk | None) -> HeldOutSums:
    total = HeldOutSums()
    if chunk is None:
        return total
    for fold, members in folds.items():
        held = chunk.of_role(VALIDATION, plan.rules[fold])
        if len(held):
            total.merge(members.sums(plan, held))
    return total


def _rows_of_parts(
    parts: Sequence[SampleParts], level: npt.NDArray[np.int64], inside: npt.NDArray[np.int64]
) -> list[tuple[tuple[str, str], npt.NDArray[np.bool_]]]:
    """Return which samples (N,) belong to each part that has any, by kind and name."""
    found: list[tuple[tuple[str, str], npt.NDArray[np.bool_]]] = []
    for one in parts:
        numbers = one.of(level, inside)
        found += [((one.kind, one.names[number]), numbers == number) for number in np.unique(numbers[numbers >= 0])]
    return found
