"""How good an ensemble is on the samples that its members held out, and how well their spread tells their error.

N  values      O  targets
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import SampleSource, open_source_on_root, selection_of
from mpitrain.data.dataset.split import plan_split
from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.ensemble.held_out_sums import HeldOutPlan, HeldOutSums, Values, sum_held_out
from mpitrain.ensemble.sample_parts import parts_of
from mpitrain.errors import DataError, OutputError, reason_of
from mpitrain.inference.page.findings import draw_place_map
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, MapLook, PlaceErrors, Skill, TargetSkill, error_look
from mpitrain.observe.figures import has_matplotlib
from mpitrain.train import RunFolder, load_folder_settings

SKILL = "skill.csv"
COLUMNS = ("part", "name", "target", "units", "values", "bias", "rmse", "r2")
_MOST_SHOWN = 20_000  # values that are plotted, and compared with the members' spread
_MOST_PLACED = 4_000_000  # values whose errors are added up place by place


@dataclass(frozen=True)
class PartSkill:
    """Errors of each target on a part of the samples; `kind`: "all", "fold", "time" or "group", `name`: which."""

    kind: str
    name: str
    skills: Sequence[Skill]


@dataclass(frozen=True)
class HeldOut:
    """The mean of the members on the samples that they held out: skill on all of them, then on parts.

    Of the first target, `truth` and `mean` (N,) are some values; `calibration` is None where no fold has two members;
    `maps` are PNG by title. `of_samples` says which samples these are.
    """

    parts: Sequence[PartSkill]
    of_samples: str
    truth: Values
    mean: Values
    calibration: Calibration | None
    maps: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def skills(self) -> Sequence[Skill]:
        """The errors of each target on all of the samples."""
        return self.parts[0].skills

    def lines(self) -> list[str]:
        """Return the skill of each target, and how it differs between folds."""
        lines = []
        for number, one in enumerate(self.skills):
            of_folds = [part.skills[number].sums.rmse for part in self.parts if part.kind == "fold"]
            over = f"; of folds {min(of_folds):.4g} to {max(of_folds):.4g}, standard deviation " if of_folds[1:] else ""
            spread = f"{statistics.stdev(of_folds):.2g}" if over else ""
            lines.append(f"{TargetSkill.of(one.name, one.units, one.sums).words}{over}{spread}")
        return [*lines, self.of_samples]

    def to_csv(self) -> str:
        """Return a line for each part and target."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for part in self.parts:
            for name, units, sums in ((one.name, one.units, one.sums) for one in part.skills):
                r2 = "" if sums.r2 is None else sums.r2
                writer.writerow([part.kind, part.name, name, units, sums.count, sums.bias, sums.rmse, r2])
        return text.getvalue()


def read_skill(folder: Path) -> list[dict[str, Any]]:
    """Return the lines that `HeldOut.to_csv` wrote to an ensemble's folder, by column; none without the file.

    Raises OutputError where the file is not what an ensemble writes.
    """
    path = folder / SKILL
    if not path.is_file():
        return []
    try:
        with path.open(newline="") as file:
            return [
                {
                    **{name: row[name] for name in COLUMNS[:4]},
                    "values": int(row["values"]),
                    **{name: float(row[name]) if row[name] else None for name in COLUMNS[5:]},
                }
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path}: is not what an ensemble writes ({reason_of(error)}); --resume writes it") from error


def evaluate_held_out(
    ranks: Ranks, folder: Path, rows: Sequence[Mapping[str, str]], networks: Mapping[str, StoredNetwork]
) -> HeldOut | None:  # fmt: skip
    """Return how good the members are on the samples that none of their fold has trained on. Collective.

    `rows` are those of the table; of their members those count that are in `networks`, by name, the same on all ranks.
    None where nothing is held out, or the data is gone.
    """
    members: dict[str, list[str]] = {}
    for row in rows:
        if row["member"] in networks:
            members.setdefault(row["fold"], []).append(row["member"])
    if not members:
        return None
    try:
        configs = ranks.on_root(lambda: {fold: _settings_of(folder, some[0]) for fold, some in members.items()})
        source = open_source_on_root(selection_of(next(iter(configs.values()))), ranks)
        with closing(source):
            plan = ranks.on_root(lambda: _plan(configs, source))
            if plan is None:
                return None
            of_folds = {fold: [networks[member] for member in some] for fold, some in members.items()}
            sums = sum_held_out(ranks, source, plan, of_folds)
            return ranks.on_root(lambda: _told(source, sums, configs) if sums.by_part else None)
    except DataError:  # raised on all ranks
        return None


def _settings_of(folder: Path, member: str) -> RunConfig:
    return load_folder_settings(RunFolder(folder / "members" / member), trust_code=True).config  # builds no network


def _plan(configs: Mapping[str, RunConfig], source: SampleSource) -> HeldOutPlan | None:
    rules = {fold: plan_split(config.split_data, source) for fold, config in configs.items()}
    if source.first_held_out is None and not any(rule.holds_out for rule in rules.values()):
        return None
    num_values = source.num_points * (int(np.prod(source.grid_shape)) if source.kind == "fields" else 1)
    with_places = source.layout.is_grid and num_values <= _MOST_PLACED and has_matplotlib()
    group = next(iter(configs.values())).data.group
    return HeldOutPlan(rules, parts_of(source, group), -(-_MOST_SHOWN // len(source.chunks)), with_places)


def _told(source: SampleSource, sums: HeldOutSums, configs: Mapping[str, RunConfig]) -> HeldOut:
    units = [source.units.get(name, "") for name in source.target_names]
    total = [ErrorSums() for _ in units]
    for fold in configs:
        for one, more in zip(total, sums.by_part.get(("fold", fold), ()), strict=False):
            one.merge(more)
    known = {("all", ""): total}
    known |= {("fold", fold): sums.by_part["fold", fold] for fold in configs if fold and ("fold", fold) in sums.by_part}
    known |= {key: of_part for key, of_part in sorted(sums.by_part.items()) if key[0] != "fold"}
    parts = [
        PartSkill(*key, [Skill(*one) for one in zip(source.target_names, units, of_targets, strict=True)])
        for key, of_targets in known.items()
    ]
    # Folds may differ in how many of their members have ended well: they are compared as far as all have them.
    num_members = min(map(len, sums.values))
    values = np.concatenate([part[:num_members] for part in sums.values], axis=1)
    truth, mean = np.concatenate(sums.truth), np.concatenate([part.mean(0) for part in sums.values])
    calibration = calibration_of(values, truth) if num_members > 1 and len(truth) else None
    words = _words_of_samples(configs, total[0].count)
    return HeldOut(parts, words, truth, mean, calibration, _maps(source, sums, parts[0].skills[0]))


def _words_of_samples(configs: Mapping[str, RunConfig], count: int) -> str:
    first, num_folds = next(iter(configs.values())), len(configs)
    of = "all held-out samples"
    if first.data.folds is not None:
        of = f"samples that {num_folds} {'folds' if num_folds > 1 else 'fold'} of {first.data.folds} held out"
    chosen = ", which also chose the epoch" if first.exported_weights == "best" else ""
    return f"over {of}, {count:,} values of each target{chosen}"


def _maps(source: SampleSource, sums: HeldOutSums, first: Skill) -> dict[str, bytes]:
    """Return maps of the first target: the mean of predicted minus data, and of the members' spread, at each place."""
    label, over = first.label, f"over {first.sums.count:,} held-out values"
    maps = {}
    if sums.errors:
        errors = PlaceErrors.together(sums.errors).mean_on(source.grid_shape)
        look = error_look(f"{first.name}, mean of predicted minus data {over}", label, errors)
        maps["Where the errors are"] = draw_place_map(source, errors, look)
    if sums.spreads:
        spread = PlaceErrors.together(sums.spreads).mean_on(source.grid_shape)
        look = MapLook(f"{first.name}, mean spread of the members {over}", f"spread of {label}")
        maps["Where the members differ"] = draw_place_map(source, spread, look)
    return {title: picture for title, picture in maps.items() if picture is not None}
