"""Skill of an ensemble on the samples that its members held out, and calibration of its spread.

N  values      O  targets
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data import SampleSource, open_source_on_root, selection_of
from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.ensemble.plan.members import Member
from mpitrain.errors import ConfigError, DataError
from mpitrain.inference.page.findings import course_of, draw_place_map
from mpitrain.inference.quality.held_out import HeldOutSums, sum_held_out
from mpitrain.models import StoredNetwork
from mpitrain.observe import Course, ErrorSums, MapLook, Pairs, Skill, TargetSkill, error_look

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PartSkill:
    """Errors of each target on a part of the samples; `kind` is "all", "fold", "time" or "group", `name` that part."""

    kind: str
    name: str
    skills: Sequence[Skill]


@dataclass(frozen=True)
class HeldOut:
    """Skill of the members' mean on the samples that they held out: on all of them, then on parts.

    `of_samples` describes these samples; `pairs` are some values of the truth and the mean. Of the first target only:
    `calibration`, None if no fold has two members, and `maps`, PNG by title.
    """

    parts: Sequence[PartSkill]
    of_samples: str
    pairs: Pairs
    calibration: Calibration | None
    maps: Mapping[str, bytes] = field(default_factory=dict)
    course: Course | None = None

    @property
    def skills(self) -> Sequence[Skill]:
        """The errors of each target on all of the samples."""
        return self.parts[0].skills

    def lines(self) -> list[str]:
        """Return a line on the skill of each target, with its spread between folds, then `of_samples`."""
        lines = []
        for number, one in enumerate(self.skills):
            of_folds = [part.skills[number].sums for part in self.parts if part.kind == "fold"]
            if one.sums.count:
                skill = TargetSkill.of(one.name, one.units, one.sums, of_folds)
                spread = skill.spread("folds")
                deviation = f", standard deviation {statistics.stdev(skill.of_parts):.2g}" if spread else ""
                lines.append(f"{skill.description}{spread}{deviation}")
        return [*lines, self.of_samples]

    def to_csv(self) -> str:
        """Return CSV with a line for each part and target."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["kind", "name", "target", "units", "values", "bias", "rmse", "r2"])
        for part in self.parts:
            for name, units, sums in ((one.name, one.units, one.sums) for one in part.skills):
                r2 = "" if sums.r2 is None else sums.r2
                writer.writerow([part.kind, part.name, name, units, sums.count, sums.bias, sums.rmse, r2])
        return text.getvalue()


def evaluate_held_out(
    ranks: Ranks, members: Sequence[Member], networks: Sequence[StoredNetwork]
) -> HeldOut | None:  # fmt: skip
    """Return the skill of the members' mean on samples that no member of the same fold trained on. Collective.

    Networks must be the same on all ranks. Returns None if nothing is held out, and, with a notice, if the data can no
    longer be read.
    """
    config = members[0].config if members else None
    if config is None or not networks:
        return None
    folds: dict[str, tuple[DataSection, list[StoredNetwork]]] = {}
    for member, network in zip(members, networks, strict=True):
        name = "" if member.fold is None else str(member.fold)
        if member.config is not None:
            folds.setdefault(name, (member.config.split_data, []))[1].append(network)
    try:
        with closing(open_source_on_root(selection_of(config), ranks)) as source:
            sums = sum_held_out(ranks, source, folds)
            if not sums.by_part:
                return None
            chosen = {"the settings": bool(members[0].varied), "the epoch": config.exported_weights == "best"}
            text = _describe_samples(list(folds), config.data.folds, [key for key, is_so in chosen.items() if is_so])
            return ranks.on_root(lambda: _skill_of(source, sums, list(folds), text))
    except (ConfigError, DataError) as error:  # raised on all ranks
        ranks.note(f"the skill on held-out samples is left out: {error}")
        return None


def _describe_samples(folds: Sequence[str], num_folds: int | None, chosen: Sequence[str]) -> str:
    of = "all held-out samples"
    if num_folds is not None:
        of = f"samples that {len(folds)} {'folds' if len(folds) > 1 else 'fold'} of {num_folds} held out"
    return f"over {of}{', which also chose ' if chosen else ''}{' and '.join(chosen)}"


def _skill_of(source: SampleSource, sums: HeldOutSums, folds: Sequence[str], text: str) -> HeldOut:
    units = [source.units.get(name, "") for name in source.target_names]
    of_folds = {key: sums.by_part[key] for name in folds if (key := ("fold", name)) in sums.by_part}
    total = [ErrorSums() for _ in units]
    for of_fold in of_folds.values():
        for one, more in zip(total, of_fold, strict=True):
            one.merge(more)
    known = {("all", ""): total, **(of_folds if folds != [""] else {})}
    others = sorted((key for key in sums.by_part if key[0] != "fold"), key=_by_numbers)
    known |= {key: sums.by_part[key] for key in others}
    parts = [
        PartSkill(*key, [Skill(*one) for one in zip(source.target_names, units, of_targets, strict=True)])
        for key, of_targets in known.items()
    ]
    least, most = min(one.count for one in total), max(one.count for one in total)
    text = f"{text}: {most:,} values of each target" if least == most else f"{text}: {least:,} to {most:,} values"
    maps, course = _maps(source, sums, parts[0].skills[0]), course_of(next(iter(sums.first), None), source)
    return HeldOut(parts, text, Pairs.together(sums.pairs), _calibration(sums), maps, course)


def _by_numbers(key: tuple[str, str]) -> tuple[str, list[tuple[int, str]]]:
    """Return a sort key: by kind, then by name with its digits as numbers."""
    parts = re.split(r"(\d+)", key[1])
    return key[0], [(int(part) if part.isdecimal() else 0, part) for part in parts]


def _calibration(sums: HeldOutSums) -> Calibration | None:
    # Folds may differ in the number of members that were trained: use the smallest number, of folds with several.
    several = []
    for part, truth in zip(sums.values, [one.truth[:, 0] for one in sums.pairs], strict=True):
        counted = np.isfinite(part.mean(0) - truth)
        if len(part) > 1 and counted.any():
            several.append((part[:, counted], truth[counted]))
    if not several:
        return None
    num_members = min(len(part) for part, _ in several)
    values = np.concatenate([part[:num_members] for part, _ in several], axis=1)
    return calibration_of(values, np.concatenate([truth for _, truth in several]))


def _maps(source: SampleSource, sums: HeldOutSums, first: Skill) -> dict[str, bytes]:
    """Return maps of the first target, by title: the mean of predicted minus data, and the mean spread of the members.

    Empty if the positions or times of the data cannot be read.
    """
    label, over = first.label, f"over {first.sums.count:,} held-out values"
    maps = {}
    try:
        if sums.errors:
            errors = sums.errors[0].mean_on(source.grid_shape)
            look = error_look(f"{first.name}, mean of predicted minus data {over}", label, errors)
            maps["Where the errors are"] = draw_place_map(source, errors, look)
        if sums.spreads:
            spread = sums.spreads[0].mean_on(source.grid_shape)
            look = MapLook(f"{first.name}, mean spread of the members {over}", f"spread of {label}")
            maps["Where the members differ"] = draw_place_map(source, spread, look)
    except DataError:
        return {}
    return {title: picture for title, picture in maps.items() if picture is not None}
