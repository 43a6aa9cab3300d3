"""The role of each sample of a file when a network was trained: training, validation, test, or unused.

N  samples      C  chunks      P  ranks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data import SampleSource, Selection, open_source_on_root, selection_of, valid_rows
from mpitrain.data.dataset.exchange import keep_under_limit, no_samples
from mpitrain.data.dataset.split import SplitRule, plan_split
from mpitrain.data.selection.settings import expand_paths
from mpitrain.data.streaming.first_pass import count_selected
from mpitrain.errors import DataError, UserError
from mpitrain.json_text import read_json
from mpitrain.train import RunFolder, load_folder_settings

UNUSED, TRAINING, VALIDATION, TEST = range(4)
_NOTED_SHARE, _MOST_SPLITS = 0.01, 10
ROLE_NAMES = ("unused", "training", "validation", "test")
_Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SampleRoles:
    """The role of each position in a source: `of` (number of positions,) is a number of `ROLE_NAMES`."""

    of: _Flags


def find_roles(selection: Selection, data: DataSection, source: SampleSource, ranks: Ranks) -> SampleRoles | None:
    """Return what a run used the samples of `source` for; for the root. Collective.

    The run trained on `selection`; `data` is its section, null resolved. All its files are read once more. None where
    the run has used none of the files of `source`, or cannot read its own any more.
    """
    used, test = [*selection.files, *data.validation_entries], data.test_entries
    asked = _Asked(selection, partial(plan_split, data))
    try:
        trained_on, tested_on = ranks.on_root(lambda: tuple(map(_resolved, (used, test))))
        if not any(record.path.resolve() in {*trained_on, *tested_on} for record in source.files):
            return None
        return _find_roles(asked, tested_on, source, ranks)
    except DataError:  # raised on all ranks
        return None


def roles_in_runs(
    folders: Sequence[Path], trust_code: bool, source: SampleSource, ranks: Ranks
) -> SampleRoles | None:  # fmt: skip
    """Return what the runs in `folders`, one or an ensemble's, used the samples of `source` for. Collective.

    A sample that one of them has trained on is a training sample. None where settings name code and `trust_code` is
    false, where one has used none of the files, and for members with many splits, each of which takes a pass (see
    `find_roles`).
    """
    try:
        configs = ranks.on_all_ranks(
            lambda: [load_folder_settings(RunFolder(one), trust_code).config for one in folders]
        )
    except UserError:
        return None
    splits = {one.split_data.model_dump_json(): (folder, one) for folder, one in zip(folders, configs, strict=True)}
    if len(splits) > _MOST_SPLITS:
        return None
    found = [
        find_roles(selection_of(one, RunFolder(folder).data_files(one.data.entries)), one.split_data, source, ranks)
        for folder, one in splits.values()
    ]
    known = [one.of for one in found if one is not None]
    if len(known) < len(found):
        return None
    is_trained_on = np.any([of == TRAINING for of in known], axis=0)
    return SampleRoles(np.where(is_trained_on, np.uint8(TRAINING), np.max(known, axis=0)))


def notices_of_unknown_targets(run: RunFolder, path: Path) -> list[str]:
    """Return a notice where the samples of a run lacked targets, and a file that has none cannot tell where it would.

    The run's statistics tell how many; without them there is none.
    """
    try:
        known = read_json(run.statistics)
        missing = {
            role: max(one["missing"] for one in known["variables"] if one["role"] == role)
            for role in ("input", "target")
        }
        samples = known["samples"]
        kept, valid = int(samples["kept"]), int(samples["valid"])
        is_told = missing["target"] - missing["input"] > _NOTED_SHARE * kept
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    if not is_told:
        return []
    return [
        f"{path}: the network was trained where its targets have values, at {valid:,} of {kept:,} samples; this file "
        "does not tell where that is, so some predictions may be elsewhere (as over land): domain.mask selects points"
    ]


@dataclass(frozen=True)
class _Asked:
    """The selection of a run, and how it split it."""

    selection: Selection
    plan_split: Callable[[SampleSource], SplitRule]


def _find_roles(asked: _Asked, test: Sequence[Path], source: SampleSource, ranks: Ranks) -> SampleRoles | None:
    trained_on = open_source_on_root(asked.selection, ranks)
    rule = ranks.on_root(lambda: asked.plan_split(trained_on))
    known = np.full(trained_on.num_points if ranks.is_root else 0, UNUSED, dtype=np.uint8)
    _read_roles(trained_on, rule, known, ranks)
    _share_with_repeats(trained_on, known)
    if not ranks.is_root or trained_on.grid_shape != source.grid_shape or trained_on.kind != source.kind:
        return None
    return SampleRoles(_of_positions(source, trained_on, known, test))


def _share_with_repeats(source: SampleSource, known: _Flags) -> None:
    """Give the positions of time levels that repeat others the roles of those. On the root; others hold none."""
    repeats = source.layout.repeats
    if repeats is not None and len(known):
        of_levels = known.reshape(len(repeats), -1)
        again = np.flatnonzero(repeats >= 0)
        of_levels[again] = of_levels[repeats[again]]


def _resolved(entries: Sequence[str]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in expand_paths(entries)) if entries else ()


def _read_roles(source: SampleSource, rule: SplitRule, known: _Flags, ranks: Ranks) -> None:
    """Read each chunk of what a run trains on, and note the samples' roles in `known` on the root. Collective."""
    total = None if source.max_patterns is None else sum(count_selected(source, ranks))
    num_selected = num_valid = 0
    for first in range(0, len(source.chunks), ranks.world_size):
        number = first + ranks.rank
        read = (
            partial(source.read, source.chunks[number]) if number < len(source.chunks) else partial(no_samples, source)
        )
        samples = ranks.on_all_ranks(read)
        counts = ranks.gather_object(len(samples))
        if total is not None:
            samples = keep_under_limit(source, samples, num_selected + sum(counts[: ranks.rank]), total)
        index = samples.grid_index[valid_rows(samples)]
        num_selected, valid_counts = num_selected + sum(counts), ranks.gather_object(len(index))
        is_held_out = rule.flags(index, num_valid + sum(valid_counts[: ranks.rank]))
        num_valid += sum(valid_counts)
        for indices, held_out in ranks.gather_object((index, is_held_out)):
            if ranks.is_root:
                known[indices] = np.where(held_out, VALIDATION, TRAINING)
    source.close()


def _of_positions(source: SampleSource, trained_on: SampleSource, known: _Flags, test: Sequence[Path]) -> _Flags:
    """Return the roles of the positions of `source`: those `known` of the same files, by their positions there."""
    size = 1 if source.kind == "fields" or not source.layout.is_grid else int(np.prod(source.grid_shape))
    roles = np.full(source.num_points, UNUSED, dtype=np.uint8)
    own = {frozenset(path.resolve() for path in record.paths): record for record in trained_on.files}
    for record in source.files:
        path = frozenset(path.resolve() for path in record.paths)
        here = slice(record.first_time * size, (record.first_time + record.num_times) * size)
        if path in own and own[path].num_times == record.num_times:
            first = own[path].first_time * size
            roles[here] = known[first : first + record.num_times * size]
        elif path <= set(test):
            roles[here] = TEST
    return roles
