"""Which samples are held out, and which virtual rank owns a training sample.

V  virtual ranks      N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mpitrain.config import FIRST_RULES, DataSection
from mpitrain.data.describe.names import is_cice_history
from mpitrain.data.random_streams import Stream, keyed_permutation, keyed_uniform
from mpitrain.data.selection.coordinates import (
    dates_of_levels,
    known_ranks,
    open_coordinates,
    places_of_levels,
    places_of_reports,
)
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import ConfigError, DataError

_OF_SERIES = (
    "held out for validation: single times of a series, between times that are trained on; for skill at times to come "
    "set data.split=time, which holds out stretches"
)
_OF_GRID = (
    "held out for validation: single points, between others of the same times and places that are trained on; for "
    "skill at times to come set data.split=time, for skill elsewhere data.split=region; data.split=random says that "
    "this is meant"
)
_OF_REPORTS = (
    "held out for validation: single reports of places that are trained on; for skill elsewhere give reports of other "
    "places as data.validation_path; data.split=random says that this is meant"
)
_OF_AUTO = "; data.split=random draws them one by one"
_FEWEST_REPORTS_A_PLACE, _FEWEST_TIMES, _MOST_RANGES = 3, 20, 4
# Of 20 blocks of time: where samples lie in fewer, those that are drawn may well have none.
_FEWEST_BLOCKS = 18
IndexArray = npt.NDArray[np.int64]
DEFAULT_TIME_BLOCKS, DEFAULT_REGION_BLOCKS = 20, 64
# Held-out shares that deviate further from the one asked for are worth a notice.
_FEWEST_OF_ASKED, _MOST_OF_ASKED = 0.5, 2.0


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
    would leave none. `words` tell a user of places. `notice`: what chance holds out has its like in training; of auto,
    how to draw samples one by one.
    """

    start: float
    stop: float
    seed: int
    places: HeldOutPlaces | None = None
    forced: int | None = None
    words: str = ""
    notice: str = ""

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


def settled_split(data: DataSection, source: SampleSource) -> str:
    """Return `data.split` of `RunConfig.split_data`, for auto what it comes to; auto where no part is held out.

    For the root. Raises DataError where a file cannot be read.
    """
    rule = split_rule(data)
    if data.split != "auto" or rule.start == rule.stop or source.first_held_out is not None:
        return data.split
    is_cice = source.selection.input_names is None or (source.layout.is_grid and is_cice_history(source.handle(0)))
    if is_cice or data.rules == FIRST_RULES:
        return "random"
    ranks = known_ranks(source)
    share = (rule.stop - rule.start) * DEFAULT_TIME_BLOCKS
    if ranks is None or share < _FEWEST_OF_ASKED or (data.folds or 0) > DEFAULT_TIME_BLOCKS:
        return "random"
    num_times = int(ranks.max()) + 1
    possible = np.unique(ranks[source.layout.levels_with_samples(source) & (ranks >= 0)])
    num_blocks = len(np.unique(possible * DEFAULT_TIME_BLOCKS // num_times))
    return "time" if len(possible) >= _FEWEST_TIMES and num_blocks >= _FEWEST_BLOCKS else "random"


def plan_split(data: DataSection, source: SampleSource) -> SplitRule:
    """Return what `data.split`, `folds` and `validation_path` mean for the samples of `source`. For the root.

    Raises ConfigError for blocks that the samples cannot have.
    """
    rule, split = split_rule(data), settled_split(data, source)
    points_a_level = 1 if source.kind == "fields" or not source.layout.is_grid else int(np.prod(source.grid_shape))
    num_levels = source.num_points // points_a_level
    are_reports = _have_places_of_their_own(data, source, num_levels)
    if source.first_held_out is not None:
        held, words = np.arange(num_levels) >= source.first_held_out, "the files of data.validation_path"
    elif rule.start == rule.stop:
        return rule
    elif split == "random":
        if source.kind == "fields":
            return _with_one(rule, num_levels)
        return replace(rule, notice=_notice_of_chance(source, num_levels, is_meant=data.split != "auto"))
    elif split == "time":
        held, words = _held_times(data, source, num_levels, rule)
    elif are_reports:
        used = source.layout.rows_by_place(source) if source.are_undated_rows else None
        held, words = _held_blocks(_regions_of_reports(data, source, used), rule, used)
        words += " of places"
    else:
        selected = source.layout.static_mask
        held, words = _held_blocks(_regions(data, source, selected), rule, selected)
        words += " of the grid"
    by_time = split != "region" or source.first_held_out is not None or are_reports
    notice = _OF_AUTO if data.split == "auto" and split == "time" else ""
    return replace(rule, places=HeldOutPlaces(held, points_a_level, by_time), words=words, notice=notice)


def _have_places_of_their_own(data: DataSection, source: SampleSource, num_levels: int) -> bool:
    """Tell whether data.split=region is by the place of each time level: of reports, or of profiles."""
    if source.kind != "points" or num_levels < 2 or not source.layout.is_grid:
        return False
    is_asked = data.split == "region" and data.rules != FIRST_RULES and source.first_held_out is None
    return source.grid_shape == (1, 1) or (is_asked and places_of_levels(source) is not None)


def describe_held_out(rule: SplitRule, num_held_out: int, num_samples: int) -> str | None:
    """Return a description of the samples that are held out of `num_samples`; None where each is drawn by itself."""
    if not (rule.words and num_held_out):
        return None
    told = f"{rule.words}, {num_held_out} samples"
    asked, found = rule.stop - rule.start, num_held_out / max(1, num_samples)
    if not asked or _FEWEST_OF_ASKED <= found / asked <= _MOST_OF_ASKED:
        return told
    return (
        f"{told}: {100 * found:.3g} % of all, {100 * asked:.3g} % were asked for; skill on them says little of the "
        "others: give data.split_blocks with data.split=time or region, or data.split=random"
    )


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


def _notice_of_chance(source: SampleSource, num_levels: int, is_meant: bool) -> str:
    """Return what the samples that chance holds out have in common with those that are trained on; "" for nothing."""
    if not source.layout.is_grid:
        return ""
    is_one_place = source.grid_shape == (1, 1) and num_levels > 1
    if not is_one_place and num_levels > 1:
        return "" if is_meant else _OF_GRID
    if not is_one_place and (is_meant or 1 not in source.grid_shape):
        return ""
    try:
        found = open_coordinates(source)
        places = places_of_reports(found)
    except DataError:  # places or times that nothing else needs
        return ""
    if places is not None:
        num_places = len(np.unique(places, axis=0))
        return "" if is_meant or num_places * _FEWEST_REPORTS_A_PLACE > len(places) else _OF_REPORTS
    if not is_one_place or found.moving or (found.times is None and source.are_undated_rows):
        return ""
    return _OF_SERIES if found.times is None or (np.diff(found.times) > 0).all() else ""


def _with_one(rule: SplitRule, num_samples: int) -> SplitRule:
    """Return a rule that holds out one of a few samples where chance would hold out none; one alone is trained on."""
    if num_samples < 2 or held_out_flags(0, num_samples, rule).any():
        return rule
    return replace(rule, forced=int(np.argmin(keyed_uniform((rule.seed, Stream.VALIDATION), num_samples))))


def _count(data: DataSection, usual: int, most: int, what: str = "") -> int:
    asked = data.split_blocks
    if most < 2:
        reason = "there is one block" if not what else "all samples are of one time"
        raise ConfigError(f"data.split={data.split}: {reason}, nothing to be cut; give data.split=random")
    if (asked or 2) > most:
        raise ConfigError(
            f"data.split={data.split}: there are {most}{what} to be cut into {asked or 2} blocks or more; give a "
            "smaller data.split_blocks, data.split=random, or more data"
        )
    return min(asked or usual, most)


def _held_blocks(
    blocks: IndexArray, rule: SplitRule, selected: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[np.bool_], str]:
    """Hold out whole blocks (N,), drawn by the seed: the rule's share of them, at least one; return flags and words.

    With `selected`, of N values, it is the share of the selected positions, and of the blocks that have any.
    """
    names, which = np.unique(blocks, return_inverse=True)
    order = keyed_permutation((rule.seed, Stream.VALIDATION), len(names))
    if selected is None:
        first = min(round(rule.start * len(names)), len(names) - 1)
        chosen = order[first : max(first + 1, round(rule.stop * len(names)))]
        return np.isin(which, chosen), f"{len(chosen)} of {len(names)} blocks"
    counts = np.bincount(which, weights=selected.reshape(-1))[order]
    order, counts = order[counts > 0], counts[counts > 0]
    # A block belongs to the fold in which the middle of its part of all positions lies: folds meet, none overlaps.
    middles = (np.cumsum(counts) - counts / 2) / counts.sum()
    chosen = order[(middles >= rule.start) & (middles < rule.stop)]
    if not len(chosen):
        chosen = order[[int(np.argmin(np.abs(middles - (rule.start + rule.stop) / 2)))]]
    return np.isin(which, chosen), f"{len(chosen)} of {len(order)} blocks"


def _held_times(
    data: DataSection, source: SampleSource, num_levels: int, rule: SplitRule
) -> tuple[npt.NDArray[np.bool_], str]:
    """Hold out whole ranges of the distinct times, in whatever order the levels are; return flags (T,) and words.

    A level without a time is trained on. Levels whose times are not known are cut in their order.
    """
    known = None if data.rules == FIRST_RULES else known_ranks(source)
    ranks = np.arange(num_levels) if known is None else known
    num_times = int(ranks.max(initial=-1)) + 1
    what = "" if num_times == num_levels else " distinct times"
    num_blocks = _count(data, DEFAULT_TIME_BLOCKS, num_times, what)
    held, words = _held_blocks(np.arange(num_times) * num_blocks // max(1, num_times), rule)
    along = "rows, whose times are not known" if known is None and source.are_undated_rows else "time"
    dates = "" if known is None else _dates_of_ranges(source, known, held)
    num_unknown = int((ranks < 0).sum())
    more = f" ({num_unknown} without a time are trained on)" if num_unknown else ""
    return np.append(held, False)[ranks], f"{words} of {along}{dates}{more}"


def _dates_of_ranges(source: SampleSource, ranks: IndexArray, held: npt.NDArray[np.bool_]) -> str:
    """Return from when to when times are held out, by their ranks (T,) and flags; "" where that cannot be said."""
    edges = np.flatnonzero(np.diff(held.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    level_of = np.zeros(len(held), dtype=np.int64)
    level_of[ranks[ranks >= 0]] = np.flatnonzero(ranks >= 0)
    shown = edges[:_MOST_RANGES]
    dates = dates_of_levels(source, level_of[np.stack([shown[:, 0], shown[:, 1] - 1], axis=1).reshape(-1)])
    ranges = [
        start if start == end else f"{start} to {end}" for start, end in zip(dates[::2], dates[1::2], strict=True)
    ]
    more = f" and {len(edges) - len(shown)} more" if len(edges) > len(shown) else ""
    return f" ({', '.join(ranges)}{more})" if ranges else ""


def _regions(data: DataSection, source: SampleSource, selected: npt.NDArray[np.bool_] | None) -> IndexArray:
    """Return the block (J * I,) of each position: rectangles of a grid's rows and columns, or of cells' places.

    `selected` (J, I): where there may be samples; the blocks are those of the rows and columns that have any.
    """
    num_rows, num_columns = source.grid_shape
    if source.kind == "fields" or not source.layout.is_grid or num_rows * num_columns < 2:
        raise ConfigError("data.split=region: only points of a grid lie in regions; set data.split=time or random")
    each = max(2, round(_count(data, DEFAULT_REGION_BLOCKS, num_rows * num_columns) ** 0.5))
    if min(num_rows, num_columns) > 1:
        used = np.ones(source.grid_shape, dtype=bool) if selected is None else selected
        rows, columns = (_parts_of(np.asarray(used.any(axis=1 - axis)), each) for axis in (0, 1))
        blocks: IndexArray = (rows[:, None] * each + columns).reshape(-1)
        return blocks
    places = open_coordinates(source).grids
    if not {"lon", "lat"} <= set(places):
        raise ConfigError(
            "data.split=region: the data has one row of cells and no longitude and latitude to tell which are "
            "neighbours; set data.split=time or random"
        )
    used = np.ones(source.grid_shape, dtype=bool) if selected is None else selected
    return _blocks_of_places(places["lat"], places["lon"], used, each)


def _regions_of_reports(
    data: DataSection, source: SampleSource, used: npt.NDArray[np.bool_] | None
) -> IndexArray:  # fmt: skip
    """Return the block (T,) of each time level, by its place; of those that are `used`, None: all."""
    places = places_of_levels(source)
    if places is None:
        raise ConfigError("data.split=region: only samples with places lie in regions; set data.split=time or random")
    each = max(2, round(_count(data, DEFAULT_REGION_BLOCKS, len(places)) ** 0.5))
    used = np.ones(len(places), dtype=bool) if used is None else used
    return _blocks_of_places(places[:, 0], places[:, 1], used, each)


def _blocks_of_places(
    latitude: npt.NDArray[np.floating], longitude: npt.NDArray[np.floating], used: npt.NDArray[np.bool_], each: int
) -> IndexArray:
    """Return the blocks of places, `each` from south to north, of equal areas, times `each` from west to east."""
    south_to_north = _parts_between(np.sin(np.radians(latitude)), used, (-1.0, 1.0), each)
    west_to_east = _parts_between(np.mod(longitude, 360.0), used, (0.0, 360.0), each)
    blocks: IndexArray = (south_to_north * each + west_to_east).reshape(-1)
    return blocks


def _parts_between(
    values: npt.NDArray[np.floating], used: npt.NDArray[np.bool_], whole: tuple[float, float], count: int
) -> IndexArray:
    """Return which of `count` equal parts of `whole` each value is in; of what the `used` span where that is small."""
    known = values[used & np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else whole
    if high - low > (whole[1] - whole[0]) / 2 or high == low:
        low, high = whole
    with np.errstate(invalid="ignore"):
        parts: IndexArray = np.clip((values - low) / (high - low) * count, 0, count - 1).astype(np.int64)
    return parts


def _parts_of(used: npt.NDArray[np.bool_], count: int) -> IndexArray:
    """Return which of `count` parts each row or column is in; those `used` are shared out evenly, in their order."""
    before: IndexArray = np.cumsum(used) - used
    return np.minimum(before * count // max(1, int(used.sum())), count - 1)


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
    """Return the sample numbers that virtual rank v owns for ever: v, v + V, v + 2V, ...; none for an idle place."""
    stop = num_samples if virtual_rank < num_virtual_ranks else virtual_rank
    return np.arange(virtual_rank, stop, num_virtual_ranks)
