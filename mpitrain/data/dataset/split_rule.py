"""Which samples train, validate and test: the rule that tells it of each by its number, place or time, on any rank.

N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import DataSection
from mpitrain.data.random_streams import Stream, keyed_uniform

_OF_BLOCKS = (
    "; skill on them says little of the others: give data.split_blocks with data.split=time or region, or "
    "data.split=random"
)
# Held-out shares that deviate further from the one asked for are worth a notice.
FEWEST_OF_ASKED, MOST_OF_ASKED = 0.5, 2.0
IndexArray = npt.NDArray[np.int64]
UNUSED, TRAINING, VALIDATION, TEST = range(4)
Roles = npt.NDArray[np.uint8]
"""The role of each of some samples, one of the four numbers."""


@dataclass(frozen=True)
class HeldOutPlaces:
    """Samples that are held out for where or when they are, or for their group.

    Each belongs to a place: its time level (`points_a_level` positions each), or its position inside a level, whose
    role is that of its place, (T,) or (J * I,). `parts` are the numbers of the ranges of time or the groups that
    places are in, of `part_kind`; None where places make no such parts.
    """

    of_places: Roles
    points_a_level: int
    by_time: bool
    parts: IndexArray | None = None
    part_kind: str = ""

    def roles(self, grid_index: IndexArray) -> Roles:
        """Return the roles of the samples at these positions (N,) in their source."""
        return self.of_places[self._places(grid_index)]

    def parts_of(self, grid_index: IndexArray) -> IndexArray:
        """Return the parts of the samples at these positions (N,), all 0 where there are none."""
        return np.zeros_like(grid_index) if self.parts is None else self.parts[self._places(grid_index)]

    def _places(self, grid_index: IndexArray) -> IndexArray:
        level, inside = np.divmod(grid_index, self.points_a_level)
        return level if self.by_time else inside


@dataclass(frozen=True)
class SplitRule:
    """Which samples are held out: those whose random number, by (seed, place among the usable), is in [start, stop).

    Folds are intervals that meet, so that each sample is held out by exactly one of them. The share `test` of them with
    the largest numbers is for a test at the end. With `places`, samples are held out for where or when they are
    instead. `forced` is the number of one that is held out where so few samples would leave none. `words` tell a user
    of places, `test_words` of the test, `advice` what to do where their share is not the one asked for. `notice`: what
    chance holds out has its like in training; of auto, how to draw samples one by one. `settled` is what
    `DataSection.held_out_by` has come to.
    """

    start: float
    stop: float
    seed: int
    places: HeldOutPlaces | None = None
    forced: int | None = None
    words: str = ""
    notice: str = ""
    advice: str = _OF_BLOCKS
    test: float = 0.0
    test_words: str = ""
    settled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds_out(self) -> bool:
        """Whether there are other roles than to be trained on."""
        return self.start != self.stop or self.test > 0

    def roles(self, grid_index: IndexArray, first: int) -> Roles:
        """Return the roles of usable samples (N,), by their positions in the source and the first one's number."""
        if self.places is not None:
            return self.places.roles(grid_index)
        roles = np.full(len(grid_index), TRAINING, dtype=np.uint8)
        if self.holds_out:
            numbers = keyed_uniform((self.seed, Stream.VALIDATION), len(roles), first)
            roles[(numbers >= self.start) & (numbers < self.stop)] = VALIDATION
            roles[numbers >= 1.0 - self.test] = TEST
        if self.forced is not None and first <= self.forced < first + len(roles):
            roles[self.forced - first] = VALIDATION
        return roles


def split_rule(data: DataSection) -> SplitRule:
    """Return the rule of `RunConfig.split_data`: one of its `folds`, or the fraction `validation_split`."""
    folds, seed = data.folds, int(data.split_seed or 0)
    if folds is None:
        return SplitRule(0.0, data.validation_split or 0.0, seed, test=data.test_split or 0.0)
    fold = data.fold or 0
    return SplitRule(fold / folds, (fold + 1) / folds, seed)


def held_out_flags(first: int, count: int, rule: SplitRule) -> npt.NDArray[np.bool_]:
    """Return which of the usable samples number `first` up to `first` + `count` (count,) are held out.

    Each sample is decided from (seed, number) alone: the same for any number of ranks.
    """
    return np.asarray(replace(rule, places=None).roles(np.empty(count, np.int64), first) == VALIDATION)


def describe_held_out(rule: SplitRule, num_held_out: int, num_samples: int) -> str | None:
    """Return a description of the samples that are held out of `num_samples`; None where each is drawn by itself."""
    if not (rule.words and num_held_out):
        return None
    told = f"{rule.words}, {num_held_out} samples"
    asked, found = rule.stop - rule.start, num_held_out / max(1, num_samples)
    if not asked or FEWEST_OF_ASKED <= found / asked <= MOST_OF_ASKED:
        return told
    return f"{told}: {100 * found:.3g} % of all, {100 * asked:.3g} % were asked for{rule.advice}"


def split_notices(rule: SplitRule, num_held_out: int, num_test: int, num_samples: int) -> Iterator[str]:
    """Yield the notices of a split of `num_samples`: which are held out together, or that none is."""
    held_out = describe_held_out(rule, num_held_out, num_samples)
    if num_held_out == 0 and rule.start != rule.stop:
        why = f"no sample lies in {rule.words}" if rule.words else "too few samples"
        yield f"nothing is held out: {why}; give more data, data.split=random, or files as data.validation_path"
    elif held_out is not None:
        more = "" if "data.split=random" in held_out else rule.notice
        yield f"held out for validation: {held_out}{more}"
    elif rule.notice and rule.places is None:
        yield rule.notice
    if rule.test and num_test == 0:
        why = "too few samples" if rule.places is None else f"no sample lies in {rule.test_words}"
        yield f"nothing is kept for a test: {why}; give more data, or data.test_split=0"
    elif rule.test:
        yield f"kept for a test at the end: {rule.test_words}, {num_test} samples; data.test_split=0 trains on them"
