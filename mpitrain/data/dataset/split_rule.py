"""Which samples are held out: the rule that tells it of each by its number, or by its place or time, on any rank.

N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.config import DataSection
from mpitrain.data.random_streams import Stream, keyed_uniform

_OF_BLOCKS = (
    "; skill on them says little of the others: give data.split_blocks with data.split=time or region, or "
    "data.split=random"
)
# Held-out shares that deviate further from the one asked for are worth a notice.
FEWEST_OF_ASKED, _MOST_OF_ASKED = 0.5, 2.0
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldOutPlaces:
    """Samples that are held out for where or when they are, or for their group.

    Each belongs to a place: its time level (`points_a_level` positions each), or its position inside a level. `held`
    tells it of each place, (T,) or (J * I,).
    """

    held: npt.NDArray[np.bool_]
    points_a_level: int
    by_time: bool

    def flags(self, grid_index: IndexArray) -> npt.NDArray[np.bool_]:
        """Tell which of the samples at these positions (N,) in their source are held out."""
        level, inside = np.divmod(grid_index, self.points_a_level)
        flags: npt.NDArray[np.bool_] = self.held[level if self.by_time else inside]
        return flags


@dataclass(frozen=True)
class SplitRule:
    """Which samples are held out: those whose random number, by (seed, place among the usable), is in [start, stop).

    Folds are intervals that meet, so that each sample is held out by exactly one of them. With `places`, samples are
    held out for where or when they are instead. `forced` is the number of one that is held out where so few samples
    would leave none. `words` tell a user of places, `advice` what to do where their share is not the one asked for.
    `notice`: what chance holds out has its like in training; of auto, how to draw samples one by one.
    """

    start: float
    stop: float
    seed: int
    places: HeldOutPlaces | None = None
    forced: int | None = None
    words: str = ""
    notice: str = ""
    advice: str = _OF_BLOCKS

    def flags(self, grid_index: IndexArray, first: int) -> npt.NDArray[np.bool_]:
        """Tell which usable samples (N,) are held out: their positions in the source, and the first one's number."""
        if self.places is not None:
            return self.places.flags(grid_index)
        flags = held_out_flags(first, len(grid_index), self)
        if self.forced is not None and first <= self.forced < first + len(flags):
            flags[self.forced - first] = True
        return flags


def split_rule(data: DataSection) -> SplitRule:
    """Return the rule of `RunConfig.split_data`: one of its `folds`, or the fraction `validation_split`."""
    folds, seed = data.folds, int(data.split_seed or 0)
    if folds is None:
        return SplitRule(0.0, data.validation_split or 0.0, seed)
    fold = data.fold or 0
    return SplitRule(fold / folds, (fold + 1) / folds, seed)


def held_out_flags(first: int, count: int, rule: SplitRule) -> npt.NDArray[np.bool_]:
    """Tell which of the usable samples number `first` up to `first` + `count` (count,) are held out.

    Each sample is decided from (seed, number) alone: the same for any number of ranks.
    """
    if rule.start == rule.stop:
        return np.zeros(count, dtype=bool)
    numbers = keyed_uniform((rule.seed, Stream.VALIDATION), count, first)
    flags: npt.NDArray[np.bool_] = (numbers >= rule.start) & (numbers < rule.stop)
    return flags


def split_validation(num_samples: int, fraction: float, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return the training and the validation samples' positions, each in file order."""
    is_validation = held_out_flags(0, num_samples, SplitRule(0.0, fraction, seed))
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def describe_held_out(rule: SplitRule, num_held_out: int, num_samples: int) -> str | None:
    """Return a description of the samples that are held out of `num_samples`; None where each is drawn by itself."""
    if not (rule.words and num_held_out):
        return None
    told = f"{rule.words}, {num_held_out} samples"
    asked, found = rule.stop - rule.start, num_held_out / max(1, num_samples)
    if not asked or FEWEST_OF_ASKED <= found / asked <= _MOST_OF_ASKED:
        return told
    return f"{told}: {100 * found:.3g} % of all, {100 * asked:.3g} % were asked for{rule.advice}"


def split_notices(rule: SplitRule, num_held_out: int, num_samples: int) -> tuple[str, ...]:
    """Return the notices of a split of `num_samples`: which are held out together, or that none is."""
    if num_held_out == 0 and (rule.places is not None or rule.start != rule.stop):
        why = f"no sample lies in {rule.words}" if rule.words else "too few samples"
        return (f"nothing is held out: {why}; give more data, data.split=random, or files as data.validation_path",)
    held_out = describe_held_out(rule, num_held_out, num_samples)
    if held_out is not None:
        more = "" if "data.split=random" in held_out else rule.notice
        return (f"held out for validation: {held_out}{more}",)
    return (rule.notice,) if rule.notice else ()
