"""Which samples are held out, and which virtual rank owns a training sample.

V  virtual ranks      N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mpitrain.config import RunConfig
from mpitrain.data.random_streams import Stream, keyed_permutation, keyed_uniform
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import ConfigError

IndexArray = npt.NDArray[np.int64]
DEFAULT_TIME_BLOCKS, DEFAULT_REGION_BLOCKS = 20, 64


@dataclass(frozen=True)
class HeldOutPlaces:
    """Samples that are held out for where or when they are.

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
    would leave none. `words` tell a user of places.
    """

    start: float
    stop: float
    seed: int
    places: HeldOutPlaces | None = None
    forced: int | None = None
    words: str = ""

    def flags(self, grid_index: IndexArray, first: int) -> npt.NDArray[np.bool_]:
        """Tell which usable samples (N,) are held out: their positions in the source, and the first one's number."""
        if self.places is not None:
            return self.places.flags(grid_index)
        flags = held_out_flags(first, len(grid_index), self)
        if self.forced is not None and first <= self.forced < first + len(flags):
            flags[self.forced - first] = True
        return flags


def split_rule(config: RunConfig) -> SplitRule:
    """Return the rule of the settings: one of `data.folds`, or the fraction `data.validation_split`."""
    folds = config.data.folds
    if folds is None:
        return SplitRule(0.0, config.validation_split, config.split_seed)
    fold = config.data.fold or 0
    return SplitRule(fold / folds, (fold + 1) / folds, config.split_seed)


def plan_split(config: RunConfig, source: SampleSource) -> SplitRule:
    """Return what `data.split`, `folds` and `validation_path` mean for the samples of `source`. For the root.

    Raises ConfigError for blocks that the samples cannot have.
    """
    rule, split = split_rule(config), config.data.split
    points_a_level = 1 if source.kind == "fields" or not source.layout.is_grid else int(np.prod(source.grid_shape))
    num_levels = source.num_points // points_a_level
    if source.first_held_out is not None:
        held, words = np.arange(num_levels) >= source.first_held_out, "the files of data.validation_path"
    elif rule.start == rule.stop:
        return rule
    elif split == "random":
        return _with_one(rule, num_levels) if source.kind == "fields" else rule
    elif split == "time":
        blocks = np.arange(num_levels) * _count(config, DEFAULT_TIME_BLOCKS, num_levels) // max(1, num_levels)
        held, words = _held_blocks(blocks, rule)
        words += " of time"
    else:
        held, words = _held_blocks(_regions(config, source), rule)
        words += " of the grid"
    by_time = split != "region" or source.first_held_out is not None
    return replace(rule, places=HeldOutPlaces(held, points_a_level, by_time), words=words)


def split_notices(rule: SplitRule, num_held_out: int) -> tuple[str, ...]:
    """Return what a user should know of the split: what is held out together, or that nothing is."""
    if num_held_out == 0 and (rule.places is not None or rule.start != rule.stop):
        return ("nothing is held out: too few samples; give more data, or files of their own as data.validation_path",)
    return (f"held out for validation: {rule.words}, {num_held_out} samples",) if rule.words else ()


def _with_one(rule: SplitRule, num_samples: int) -> SplitRule:
    """Return a rule that holds out one of a few samples where chance would hold out none; one alone is trained on."""
    if num_samples < 2 or held_out_flags(0, num_samples, rule).any():
        return rule
    return replace(rule, forced=int(np.argmin(keyed_uniform((rule.seed, Stream.VALIDATION), num_samples))))


def _count(config: RunConfig, usual: int, most: int) -> int:
    asked = config.data.split_blocks
    if (asked or 2) > most:
        raise ConfigError(
            f"data.split={config.data.split}: there are {most} to be cut into {asked or 2} blocks or more; give a "
            "smaller data.split_blocks, data.split=random, or more data"
        )
    return min(asked or usual, most)


def _held_blocks(blocks: IndexArray, rule: SplitRule) -> tuple[npt.NDArray[np.bool_], str]:
    """Hold out whole blocks, drawn by the seed: the rule's share of them, at least one; return flags and words."""
    names, which = np.unique(blocks, return_inverse=True)
    first = min(round(rule.start * len(names)), len(names) - 1)
    chosen = slice(first, max(first + 1, round(rule.stop * len(names))))
    held = np.zeros(len(names), dtype=bool)
    held[keyed_permutation((rule.seed, Stream.VALIDATION), len(names))[chosen]] = True
    return held[which], f"{int(held.sum())} of {len(names)} blocks"


def _regions(config: RunConfig, source: SampleSource) -> IndexArray:
    """Return the block (J * I,) of each position: rectangles of a grid's rows and columns, or of cells' places."""
    num_rows, num_columns = source.grid_shape
    if source.kind == "fields" or not source.layout.is_grid or num_rows * num_columns < 2:
        raise ConfigError("data.split=region: only points of a grid lie in regions; set data.split=time or random")
    each = max(2, round(_count(config, DEFAULT_REGION_BLOCKS, num_rows * num_columns) ** 0.5))
    if min(num_rows, num_columns) > 1:
        rows, columns = np.arange(num_rows) * each // num_rows, np.arange(num_columns) * each // num_columns
        blocks: IndexArray = (rows[:, None] * each + columns).reshape(-1)
        return blocks
    places = open_coordinates(source).grids
    if not {"lon", "lat"} <= set(places):
        raise ConfigError(
            "data.split=region: the data has one row of cells and no longitude and latitude to tell which are "
            "neighbours; set data.split=time or random"
        )
    south_to_north = np.clip((np.sin(np.radians(places["lat"])) + 1) / 2 * each, 0, each - 1).astype(np.int64)
    west_to_east = np.clip(np.mod(places["lon"], 360.0) / 360.0 * each, 0, each - 1).astype(np.int64)
    of_cells: IndexArray = (south_to_north * each + west_to_east).reshape(-1)
    return of_cells


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


def members_of(virtual_rank: int, num_virtual_ranks: int, num_samples: int) -> IndexArray:
    """Return the sample numbers that belong to virtual rank v for ever: v, v + V, v + 2V, ..."""
    return np.arange(virtual_rank, num_samples, num_virtual_ranks)
