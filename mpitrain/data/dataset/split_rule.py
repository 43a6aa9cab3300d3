"""The split rule: any rank decides by a sample's index, location or time whether it trains, validates or tests.

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
    "; skill on them says little about the others: set data.split_blocks with data.split=time or region, or "
    "data.split=random"
)
# A notice is given if the held-out share divided by the requested one is outside this range.
SMALLEST_SHARE_RATIO, LARGEST_SHARE_RATIO = 0.5, 2.0
IndexArray = npt.NDArray[np.int64]
UNUSED, TRAINING, VALIDATION, TEST = range(4)
"""Roles: a position that is no usable sample, and samples for training, validation and the test at the end."""
Roles = npt.NDArray[np.uint8]
"""The roles of samples, each one of the four numbers above."""


@dataclass(frozen=True)
class HeldOutPlaces:
    """Samples that are held out by location, time or group.

    Each sample belongs to a place: its time level (`points_a_level` positions each) if `by_time`, otherwise its
    position inside the level. `of_places` are the roles of places, (T,) or (J * I,). `parts` are the numbers of the
    time ranges or groups to which places belong, as `part_kind` says; None if there are none.
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
        """Return the parts of the samples at these positions (N,), all 0 if there are no parts."""
        return np.zeros_like(grid_index) if self.parts is None else self.parts[self._places(grid_index)]

    def _places(self, grid_index: IndexArray) -> IndexArray:
        level, inside = np.divmod(grid_index, self.points_a_level)
        return level if self.by_time else inside


@dataclass(frozen=True)
class SplitRule:
    """The rule that holds out a sample if its random number is in [start, stop).

    The number depends only on the seed and on the sample's index among the usable samples.

    Attributes
    ----------
    start, stop : float
        Interval within [0, 1]; nothing is held out for validation if both are equal. Folds are adjacent intervals, so
        that each sample is held out by exactly one fold. With `places`, `stop - start` is the requested share.
    seed : int
        Seed of the random numbers.
    places : HeldOutPlaces or None
        The roles of locations, times or groups, which replace the random numbers; None by default.
    forced : int or None
        Index among the usable samples of one that is held out because otherwise none of a few samples would be.
    description, test_text : str
        The places that are held out, and those of the test, for messages.
    notice : str
        Warning that randomly held-out samples resemble training samples, or, for auto, the setting for a random split.
    advice : str
        Text for messages if the held-out share differs from the requested one.
    test : float
        Share of samples kept for a test at the end, by default 0; without `places` those with a random number of
        `1 - test` or more.
    settled : mapping of str to object
        The resolved settings `split` and `test_split` of `DataSection.held_out_by`.
    """

    start: float
    stop: float
    seed: int
    places: HeldOutPlaces | None = None
    forced: int | None = None
    description: str = ""
    notice: str = ""
    advice: str = _OF_BLOCKS
    test: float = 0.0
    test_text: str = ""
    settled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds_out(self) -> bool:
        """Whether there are other roles than training."""
        return self.start != self.stop or self.test > 0

    def roles(self, grid_index: IndexArray, first: int) -> Roles:
        """Return the roles of consecutive usable samples.

        Parameters
        ----------
        grid_index : ndarray of int64, shape (N,)
            Positions of the samples in their source.
        first : int
            Index of the first of them among all usable samples of the source.

        Returns
        -------
        ndarray of uint8, shape (N,)
            TRAINING, VALIDATION or TEST. The same for any number of ranks: a role depends only on the seed and the
            index, or with `places` on the position.
        """
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
    """Return which of the `count` usable samples from index `first` on are held out for validation, as flags (count,).

    Each result depends only on (seed, index): it is the same for any number of ranks.
    """
    return np.asarray(replace(rule, places=None).roles(np.empty(count, np.int64), first) == VALIDATION)


def describe_held_out(rule: SplitRule, num_held_out: int, num_samples: int) -> str | None:
    """Return a description of the samples that are held out of `num_samples`; None if each is drawn individually."""
    if not (rule.description and num_held_out):
        return None
    description = f"{rule.description}, {num_held_out} samples"
    requested, found = rule.stop - rule.start, num_held_out / max(1, num_samples)
    if not requested or SMALLEST_SHARE_RATIO <= found / requested <= LARGEST_SHARE_RATIO:
        return description
    return f"{description}: {100 * found:.3g} % of all, {100 * requested:.3g} % were requested{rule.advice}"


def split_notices(rule: SplitRule, num_held_out: int, num_test: int, num_samples: int) -> Iterator[str]:
    """Yield the notices about a split of `num_samples`: which samples are held out together, or that none are."""
    held_out = describe_held_out(rule, num_held_out, num_samples)
    if num_held_out == 0 and rule.start != rule.stop:
        reason = f"no sample lies in {rule.description}" if rule.description else "too few samples"
        yield f"nothing is held out: {reason}; use more data, data.split=random, or files in data.validation_path"
    elif held_out is not None:
        more = "" if "data.split=random" in held_out else rule.notice
        yield f"held out for validation: {held_out}{more}"
    elif rule.notice and rule.places is None:
        yield rule.notice
    if rule.test and num_test == 0:
        reason = "too few samples" if rule.places is None else f"no sample lies in {rule.test_text}"
        yield f"nothing is kept for a test: {reason}; use more data, or set data.test_split=0"
    elif rule.test:
        yield f"kept for a test at the end: {rule.test_text}, {num_test} samples; data.test_split=0 trains on them"
