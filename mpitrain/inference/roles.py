"""The role of each sample of a file when a network was trained: training, validation, test, or unused.

N  samples      C  chunks      P  ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data import (
    TEST,
    TRAINING,
    UNUSED,
    VALIDATION,
    Roles,
    SampleSource,
    Selection,
    SplitRule,
    expand_paths,
    open_source_on_root,
    selection_of,
)
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.streaming.first_pass import split_chunks
from mpitrain.durable_files import is_gone
from mpitrain.errors import DataError, UserError
from mpitrain.json_text import read_json
from mpitrain.train import RunFolder, load_folder_settings

_NOTED_SHARE, _MOST_SPLITS = 0.01, 10
ROLE_NAMES = ("unused", "training", "validation", "test")


def find_roles(selection: Selection, data: DataSection, source: SampleSource, ranks: Ranks) -> Roles | None:
    """Return the role of each sample of `source` in a run, on the root. Collective.

    The run trained on `selection`; `data` is its section `data`, with null replaced by the defaults. All files of the
    run are read once more. None if the run used none of the files of `source`, if its files can no longer be read, or
    if the grids or kinds of samples differ.
    """
    if data.validation_entries and all(is_gone(Path(one)) for one in data.validation_entries):  # arrays from Python
        selection = replace(selection, held_out_files=())
        data = data.model_copy(update={"validation_path": None, "validation_split": 0.0, "test_split": 0.0})
    used, test = [*selection.files, *data.validation_entries], data.test_entries
    try:
        trained_on, tested_on = ranks.on_root(lambda: tuple(map(_resolved, (used, test))))
        if not any(record.path.resolve() in {*trained_on, *tested_on} for record in source.files):
            return None
        opened = open_source_on_root(selection, ranks)
        known = _roles_in(opened, ranks.on_root(lambda: plan_split(data, opened)), ranks)
    except DataError:  # raised on all ranks
        return None
    if not ranks.is_root or opened.grid_shape != source.grid_shape or opened.kind != source.kind:
        return None
    return _of_positions(source, opened, known, tested_on)


def roles_in_runs(
    folders: Sequence[Path], trust_code: bool, source: SampleSource, ranks: Ranks
) -> Roles | None:  # fmt: skip
    """Return the role of each sample of `source` in the runs in `folders`, one run or an ensemble's. Collective.

    The result is on the root. A sample is a training sample if any run trained on it, otherwise a validation sample if
    any run validated on it. None if the settings name code and `trust_code` is false, if a run used none of the files,
    and for members with many splits, because each split needs a pass over the data (see `find_roles`).
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
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    roles: Roles = np.max(known, axis=0)
    for role in (VALIDATION, TRAINING):
        roles[np.any([of == role for of in known], axis=0)] = role
    return roles


def notices_of_unknown_targets(run: RunFolder, path: Path) -> list[str]:
    """Return a notice if many samples of a run lacked target values.

    Predictions in `path`, a file without targets, may then be at places without target values. The number of samples
    comes from the run's statistics; without these there is no notice.
    """
    try:
        known = read_json(run.statistics)
        missing = {
            role: max(one["missing"] for one in known["variables"] if one["role"] == role)
            for role in ("input", "target")
        }
        samples = known["samples"]
        kept, valid = int(samples["kept"]), int(samples["valid"])
        is_noted = missing["target"] - missing["input"] > _NOTED_SHARE * kept
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    if not is_noted:
        return []
    return [
        f"{path}: the network was trained only where its targets have values, at {valid:,} of {kept:,} samples; this "
        "file has no targets, so some predictions may be elsewhere (as over land); domain.mask selects points"
    ]


def _roles_in(source: SampleSource, rule: SplitRule, ranks: Ranks) -> Roles:
    """Return the role of each position of a run's training source, on the root; empty on other ranks. Collective."""
    known = np.full(source.num_points if ranks.is_root else 0, UNUSED, dtype=np.uint8)
    for own, _ in split_chunks(source, ranks, rule):
        for index, roles in ranks.gather_object((own.usable.grid_index, own.roles) if own else ([], [])):
            if ranks.is_root:
                known[index] = roles
    source.close()
    _share_with_repeats(source, known)
    return known


def _share_with_repeats(source: SampleSource, known: Roles) -> None:
    """Copy roles to time levels that repeat others, in place. On the root; the array of other ranks is empty."""
    repeats = source.layout.repeats
    if repeats is not None and len(known):
        of_levels = known.reshape(len(repeats), -1)
        again = np.flatnonzero(repeats >= 0)
        of_levels[again] = of_levels[repeats[again]]


def _resolved(entries: Sequence[str]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in expand_paths(entries)) if entries else ()


def _of_positions(source: SampleSource, trained_on: SampleSource, known: Roles, test: Sequence[Path]) -> Roles:
    """Return the roles of the positions of `source`: the `known` roles of the same files, TEST for files in `test`."""
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
