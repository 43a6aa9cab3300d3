"""Planning of the split: `data.split` and the locations, times and groups of samples define the split rule.

N  samples      T  time levels      J, I  rows and columns
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mpitrain.config import FIRST_RULES, DataSection
from mpitrain.data.dataset.split_rule import (
    LARGEST_SHARE_RATIO,
    SMALLEST_SHARE_RATIO,
    TEST,
    TRAINING,
    VALIDATION,
    HeldOutPlaces,
    IndexArray,
    Roles,
    SplitRule,
    held_out_flags,
    split_rule,
)
from mpitrain.data.describe.names import is_cice_history
from mpitrain.data.random_streams import Stream, keyed_permutation, keyed_uniform
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.coordinates import (
    dates_of_levels,
    known_ranks,
    open_coordinates,
    places_of_levels,
    places_of_reports,
)
from mpitrain.data.selection.groups import groups_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import ConfigError, DataError

_OF_SERIES = (
    "held out for validation: single times of a series, between times that are trained on; for skill at future times "
    "set data.split=time, which holds out ranges of times"
)
_OF_GRID = (
    "held out for validation: single points, between others of the same times and places that are trained on; for "
    "skill at future times set data.split=time, for skill at other places data.split=region; data.split=random "
    "confirms this split"
)
_OF_REPORTS = (
    "held out for validation: single reports of places that are trained on; for skill at other places set "
    "data.validation_path to reports of other places; data.split=random confirms this split"
)
_OF_AUTO = "; data.split=random draws samples individually"
_MOST_PARTS = 100  # of a test; each part is evaluated separately
_FEWEST_REPORTS_A_PLACE, _FEWEST_TIMES, _MOST_SHOWN, _MOST_LETTERS = 3, 20, 4, 40
# Of 20 blocks of time: if samples lie in fewer blocks, the drawn blocks may have no samples.
_FEWEST_BLOCKS = 18
DEFAULT_TIME_BLOCKS, DEFAULT_REGION_BLOCKS = 20, 64
_USUAL_TEST, _FEWEST_TO_TEST, _FEWEST_BLOCKS_TO_TEST = 0.1, 5000, 6
# Descriptions of the places that are held out, by VALIDATION and TEST.
_Descriptions = dict[int, str]


def resolved_split(data: DataSection, source: SampleSource) -> str:
    """Return `data.split` of `RunConfig.split_data` with auto resolved; auto remains if no part is held out.

    One rank only. Raises DataError if a file cannot be read.
    """
    rule = split_rule(data)
    if data.split != "auto" or not rule.holds_out or source.first_held_out is not None:
        return data.split
    if _keeps_first_split(data, source):
        return "random"
    ranks = known_ranks(source)
    share = (rule.stop - rule.start or rule.test) * DEFAULT_TIME_BLOCKS
    if ranks is None or share < SMALLEST_SHARE_RATIO or (data.folds or 0) > DEFAULT_TIME_BLOCKS:
        return "random"
    num_times = int(ranks.max()) + 1
    possible = np.unique(ranks[source.layout.levels_with_samples(source) & (ranks >= 0)])
    num_blocks = len(np.unique(possible * DEFAULT_TIME_BLOCKS // num_times))
    return "time" if len(possible) >= _FEWEST_TIMES and num_blocks >= _FEWEST_BLOCKS else "random"


def _keeps_first_split(data: DataSection, source: SampleSource) -> bool:
    """Return whether split=auto means random samples, and test_split=null no test, as in earlier versions.

    That is the case for CICE histories and with `data.rules=1`.
    """
    is_cice = source.selection.input_names is None or (source.layout.is_grid and is_cice_history(source.handle(0)))
    return is_cice or data.rules == FIRST_RULES


def _test_share(data: DataSection, source: SampleSource) -> float:
    """Return `data.test_split` with null resolved: chunks are read until there are enough samples for a test."""
    if data.test_split is not None:
        return data.test_split
    if min(source.num_points, source.max_patterns or source.num_points) < _FEWEST_TO_TEST:
        return 0.0
    if _keeps_first_split(data, source):
        return 0.0
    num_selected = num_usable = 0
    for chunk in source.chunks:
        samples = source.read(chunk)
        num_selected, num_usable = num_selected + len(samples), num_usable + int(np.count_nonzero(valid_rows(samples)))
        if num_usable >= _FEWEST_TO_TEST:
            limit = num_selected if source.max_patterns is None else source.max_patterns
            return _USUAL_TEST if limit * num_usable >= _FEWEST_TO_TEST * num_selected else 0.0
    return 0.0


def plan_split(data: DataSection, source: SampleSource) -> SplitRule:
    """Return the rule of `data.split`, `test_split`, `folds` and `validation_path` for the samples of `source`.

    One rank only. Raises ConfigError if the samples cannot be divided into the blocks or groups, DataError if a file
    lacks the variables for it.
    """
    split = resolved_split(data, source)
    rule = replace(split_rule(data), test=_test_share(data, source))
    rule = _planned(data, source, rule, split)
    return replace(rule, settled={"split": split, "test_split": rule.test})


def _planned(data: DataSection, source: SampleSource, rule: SplitRule, split: str) -> SplitRule:
    parts: IndexArray | None = None
    points_a_level = 1 if source.kind == "fields" or not source.layout.is_grid else int(np.prod(source.grid_shape))
    num_levels = source.num_points // points_a_level
    are_reports = _have_places_of_their_own(data, source, num_levels)
    by_time = split != "region" or source.first_held_out is not None or are_reports
    if source.first_held_out is not None:
        is_held_out = np.arange(num_levels) >= source.first_held_out
        roles: Roles = np.where(is_held_out, np.uint8(VALIDATION), np.uint8(TRAINING))
        descriptions = {VALIDATION: "the files of data.validation_path"}
    elif not rule.holds_out:
        return rule
    elif split == "random":
        rule = replace(rule, test_text="single samples at random")
        if source.kind == "fields":
            return _with_one(rule, num_levels)
        return replace(rule, notice=_notice_of_chance(source, num_levels, is_meant=data.split != "auto"))
    elif split == "time":
        roles, descriptions, parts = _roles_of_times(data, source, num_levels, rule)
    elif split == "group":
        rule = replace(rule, advice="")
        roles, descriptions, parts, by_time = _roles_of_groups(data, source, rule)
    elif are_reports:
        used = source.layout.rows_by_place(source) if source.are_undated_rows else None
        roles, descriptions = _roles_of_blocks(
            _regions_of_reports(data, source, used), data, rule, "blocks of places", used
        )
    else:
        used = source.layout.static_mask
        roles, descriptions = _roles_of_blocks(_regions(data, source, used), data, rule, "blocks of the grid", used)
    has_test = bool((roles == TEST).any())
    if parts is not None and len(np.unique(parts[roles == TEST])) > _MOST_PARTS:
        parts = None
    return replace(
        rule,
        places=HeldOutPlaces(roles, points_a_level, by_time, parts, "ranges" if split == "time" else "groups"),
        description=descriptions[VALIDATION] if rule.start != rule.stop else "",
        notice=_OF_AUTO if data.split == "auto" and split == "time" else "",
        test=rule.test if has_test else 0.0,
        test_text=descriptions[TEST] if has_test else "",
    )


def _have_places_of_their_own(data: DataSection, source: SampleSource, num_levels: int) -> bool:
    """Return whether data.split=region uses the location of each time level, as for reports or profiles."""
    if source.kind != "points" or num_levels < 2 or not source.layout.is_grid:
        return False
    is_asked = data.split == "region" and data.rules != FIRST_RULES and source.first_held_out is None
    return source.grid_shape == (1, 1) or (is_asked and places_of_levels(source) is not None)


def _notice_of_chance(source: SampleSource, num_levels: int, is_meant: bool) -> str:
    """Return a notice if randomly held-out samples resemble training samples in time or location, otherwise ""."""
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
    except DataError:  # places and times are optional here
        return ""
    if places is not None:
        num_places = len(np.unique(places, axis=0))
        return "" if is_meant or num_places * _FEWEST_REPORTS_A_PLACE > len(places) else _OF_REPORTS
    if not is_one_place or found.moving or (found.times is None and source.are_undated_rows):
        return ""
    return _OF_SERIES if found.times is None or (np.diff(found.times) > 0).all() else ""


def _with_one(rule: SplitRule, num_samples: int) -> SplitRule:
    """Return a rule that holds out one sample if the random draw would hold out none; a single sample is trained on."""
    if num_samples < 2 or rule.start == rule.stop or held_out_flags(0, num_samples, rule).any():
        return rule
    return replace(rule, forced=int(np.argmin(keyed_uniform((rule.seed, Stream.VALIDATION), num_samples))))


def _count(data: DataSection, default: int, most: int, unit: str = "") -> int:
    requested = data.split_blocks
    if most < 2:
        reason = "there is only one time" if not unit else "all samples are at one time"
        raise ConfigError(f"data.split={data.split}: {reason}, which cannot be divided; set data.split=random")
    if (requested or 2) > most:
        raise ConfigError(
            f"data.split={data.split}: {requested or 2} blocks are requested, at most {most} blocks{unit} are "
            "possible; set a smaller data.split_blocks or data.split=random, or use more data"
        )
    return min(requested or default, most)


def _roles_of_blocks(
    blocks: IndexArray, data: DataSection, rule: SplitRule, kind: str, used: npt.NDArray[np.bool_] | None = None
) -> tuple[Roles, _Descriptions]:
    """Hold out whole blocks (N,), drawn by the seed, in the shares of the rule; return roles (N,) and descriptions.

    At least one block is held out for validation, and for a test if `data.test_split` requests one. With `used` (N,),
    shares are those of the used positions, and only blocks with used positions count. `kind` describes the blocks.
    """
    names, which = np.unique(blocks, return_inverse=True)
    order = keyed_permutation((rule.seed, Stream.VALIDATION), len(names))
    if used is None:
        first = min(round(rule.start * len(names)), len(names) - 1)
        chosen = order[first : max(first + 1, round(rule.stop * len(names)))]
        tested = order[len(names) - round(rule.test * len(names)) :]
    else:
        counts = np.bincount(which, weights=used.reshape(-1))[order]
        order, counts = order[counts > 0], counts[counts > 0]
        # A block belongs to the fold that contains the middle of its interval: folds are adjacent and do not overlap.
        middles = (np.cumsum(counts) - counts / 2) / counts.sum()
        chosen, tested = order[(middles >= rule.start) & (middles < rule.stop)], order[middles > 1.0 - rule.test]
        if not len(chosen):
            chosen = order[[int(np.argmin(np.abs(middles - (rule.start + rule.stop) / 2)))]]
    sizes = np.bincount(which, weights=None if used is None else used.reshape(-1))
    is_large = sizes[tested].sum() > LARGEST_SHARE_RATIO * rule.test * sizes.sum()
    if data.test_split is None and (is_large or len(order) < _FEWEST_BLOCKS_TO_TEST):
        tested = order[:0]
    of_blocks = np.full(len(names), TRAINING, dtype=np.uint8)
    of_blocks[tested if len(tested) or not data.test_split else order[-1:]] = TEST
    of_blocks[chosen if rule.start != rule.stop else order[:0]] = VALIDATION
    if data.test_split is None and not (of_blocks[order] == TRAINING).any():
        of_blocks[of_blocks == TEST] = TRAINING
    counted = np.bincount(of_blocks[order], minlength=TEST + 1)
    if data.test_split and not (counted[TRAINING] and counted[TEST]):
        raise ConfigError(
            f"data.test_split={data.test_split:g}: {len(order)} {kind} are too few to train, validate and test "
            "with these shares; set data.test_split=0"
        )
    return of_blocks[which], {role: f"{counted[role]} of {len(order)} {kind}" for role in (VALIDATION, TEST)}


def _roles_of_times(
    data: DataSection, source: SampleSource, num_levels: int, rule: SplitRule
) -> tuple[Roles, _Descriptions, IndexArray]:  # fmt: skip
    """Hold out whole ranges of the distinct times, for any order of the levels.

    Return roles (T,), descriptions, and the number (T,) of each level's range: consecutive times of one role. A level
    without a time is trained on. If times are not known, ranges are of levels in their order.
    """
    known = None if data.rules == FIRST_RULES else known_ranks(source)
    ranks = np.arange(num_levels) if known is None else known
    num_times = int(ranks.max(initial=-1)) + 1
    unit = "" if num_times == num_levels else " of distinct times"
    num_blocks = _count(data, DEFAULT_TIME_BLOCKS, num_times, unit)
    along = "rows, whose times are not known" if known is None and source.are_undated_rows else "time"
    blocks = np.arange(num_times) * num_blocks // max(1, num_times)
    roles, descriptions = _roles_of_blocks(blocks, data, rule, f"blocks of {along}")
    num_unknown = int((ranks < 0).sum())
    more = f" ({num_unknown} without a time are trained on)" if num_unknown else ""
    for role in descriptions:
        descriptions[role] += ("" if known is None else _dates_of_ranges(source, known, roles == role)) + more
    ranges = np.cumsum(np.diff(roles, prepend=roles[:1]) != 0)
    return np.append(roles, np.uint8(TRAINING))[ranks], descriptions, np.append(ranges, -1)[ranks]


def _dates_of_ranges(source: SampleSource, ranks: IndexArray, is_held_out: npt.NDArray[np.bool_]) -> str:
    """Return the dates of the held-out ranges as text, from ranks (T,) and flags of times; "" if dates are unknown."""
    edges = np.flatnonzero(np.diff(is_held_out.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    level_of = np.zeros(len(is_held_out), dtype=np.int64)
    level_of[ranks[ranks >= 0]] = np.flatnonzero(ranks >= 0)
    shown = edges[:_MOST_SHOWN]
    dates = dates_of_levels(source, level_of[np.stack([shown[:, 0], shown[:, 1] - 1], axis=1).reshape(-1)])
    ranges = [
        start if start == end else f"{start} to {end}" for start, end in zip(dates[::2], dates[1::2], strict=True)
    ]
    more = f" and {len(edges) - len(shown)} more" if len(edges) > len(shown) else ""
    return f" ({', '.join(ranges)}{more})" if ranges else ""


def _roles_of_groups(
    data: DataSection, source: SampleSource, rule: SplitRule
) -> tuple[Roles, _Descriptions, IndexArray, bool]:  # fmt: skip
    """Hold out whole groups of `data.group`.

    Return roles of time levels or of positions inside a level, descriptions, the number of each one's group, and
    whether these are of levels. Samples without a group are trained on. Groups that cannot have samples, judging by
    times or places alone, do not count.
    """
    groups, by_level = groups_of(source, str(data.group))
    layout = source.layout
    if by_level:
        possible = layout.levels_with_samples(source)
        of_places = layout.rows_by_place(source) if source.grid_shape == (1, 1) else None
    else:
        possible, of_places = np.ones(groups.shape, dtype=bool), layout.static_mask
    possible = possible if of_places is None else possible & of_places.reshape(-1)
    names = np.unique(groups[possible & (groups != "")])
    fewest = data.folds or 2
    if len(names) < fewest:
        raise ConfigError(
            f"data.group={data.group}: {len(names)} group{'' if len(names) == 1 else 's'}, {fewest} or more "
            f"are needed{' for data.folds' if data.folds else ''}; give data.split=time or random, or other files"
        )
    of_names, descriptions = _roles_of_blocks(np.arange(len(names)), data, rule, f"groups of '{data.group}'")
    if (of_names == VALIDATION).all():
        raise ConfigError(
            f"data.group={data.group}: {descriptions[VALIDATION]} would be held out; set a smaller "
            "data.validation_split"
        )
    num_unknown = int((possible & (groups == "")).sum())
    rest = f"; {num_unknown} without one are trained on" if num_unknown else ""
    for role in descriptions:
        members = names[of_names == role]
        more = f" and {len(members) - _MOST_SHOWN} more" if len(members) > _MOST_SHOWN else ""
        descriptions[role] += f" ({', '.join(str(name)[:_MOST_LETTERS] for name in members[:_MOST_SHOWN])}{more}{rest})"
    places = np.minimum(np.searchsorted(names, groups), len(names) - 1)
    return np.where(names[places] == groups, of_names[places], np.uint8(TRAINING)), descriptions, places, by_level


def _regions(data: DataSection, source: SampleSource, selected: npt.NDArray[np.bool_] | None) -> IndexArray:
    """Return the block number (J * I,) of each position; blocks are rectangles in rows and columns, or in coordinates.

    Coordinates are used for a grid with a single row or column. `selected` (J, I) marks where there may be samples;
    only the rows and columns with such points are divided into blocks.
    """
    num_rows, num_columns = source.grid_shape
    if source.kind == "fields" or not source.layout.is_grid or num_rows * num_columns < 2:
        raise ConfigError("data.split=region: needs samples at several points of a grid; set data.split=time or random")
    each = max(2, round(_count(data, DEFAULT_REGION_BLOCKS, num_rows * num_columns) ** 0.5))
    used = np.ones(source.grid_shape, dtype=bool) if selected is None else selected
    if min(num_rows, num_columns) > 1:
        rows, columns = (_parts_of(np.asarray(used.any(axis=1 - axis)), each) for axis in (0, 1))
        return np.asarray((rows[:, None] * each + columns).reshape(-1))
    places = open_coordinates(source).grids
    if not {"lon", "lat"} <= set(places):
        raise ConfigError(
            "data.split=region: the data has one row of cells, and no longitude and latitude to find neighbours; set "
            "data.split=time or random"
        )
    return _blocks_of_places(places["lat"], places["lon"], used, each)


def _regions_of_reports(
    data: DataSection, source: SampleSource, used: npt.NDArray[np.bool_] | None
) -> IndexArray:  # fmt: skip
    """Return the block number (T,) of each time level by its location; `used` levels define the range, None: all."""
    places = places_of_levels(source)
    if places is None:
        raise ConfigError("data.split=region: samples have no latitude and longitude; set data.split=time or random")
    each = max(2, round(_count(data, DEFAULT_REGION_BLOCKS, len(places)) ** 0.5))
    used = np.ones(len(places), dtype=bool) if used is None else used
    return _blocks_of_places(places[:, 0], places[:, 1], used, each)


def _blocks_of_places(
    latitude: npt.NDArray[np.floating], longitude: npt.NDArray[np.floating], used: npt.NDArray[np.bool_], each: int
) -> IndexArray:
    """Return the block numbers of places: `each` bands of equal area from south to north times `each` in longitude."""
    south_to_north = _parts_between(np.sin(np.radians(latitude)), used, (-1.0, 1.0), each)
    west_to_east = _parts_between(np.mod(longitude, 360.0), used, (0.0, 360.0), each)
    return (south_to_north * each + west_to_east).reshape(-1)


def _parts_between(
    values: npt.NDArray[np.floating], used: npt.NDArray[np.bool_], whole: tuple[float, float], count: int
) -> IndexArray:
    """Return which of `count` equal parts of the interval `whole` each value is in.

    If the `used` values span at most half of `whole`, the parts divide their range instead.
    """
    known = values[used & np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else whole
    if high - low > (whole[1] - whole[0]) / 2 or high == low:
        low, high = whole
    with np.errstate(invalid="ignore"):
        parts: IndexArray = np.clip((values - low) / (high - low) * count, 0, count - 1).astype(np.int64)
    return parts


def _parts_of(used: npt.NDArray[np.bool_], count: int) -> IndexArray:
    """Return which of `count` parts each row or column is in; the `used` ones are distributed evenly, in order."""
    before: IndexArray = np.cumsum(used) - used
    return np.minimum(before * count // max(1, int(used.sum())), count - 1)
