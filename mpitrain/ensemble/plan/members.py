"""The members of an ensemble: seeds x settings x folds, each with the complete configuration of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpitrain.config import EnsembleSection, RunConfig, load_run_config, show_value
from mpitrain.config.members import check_members
from mpitrain.ensemble.plan.settings import Varied, combinations
from mpitrain.errors import MpitrainError


@dataclass(frozen=True)
class Member:
    """One network to train. `config` is the content of `config.yaml` in its folder; None if its settings are wrong.

    `seed`, `fold` (None without folds) and `varied` (by dotted key) differ between members; `setting` is the number of
    its combination of settings, and `problem` is what is wrong with that combination.
    """

    number: int
    seed: int
    fold: int | None
    setting: int
    varied: Varied
    config: RunConfig | None
    problem: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.number:04d}"

    @property
    def settings_text(self) -> str:
        """The settings that vary between members, as key=value; "" if none do."""
        return ", ".join(f"{key}={show_value(value)}" for key, value in self.varied.items())


@dataclass(frozen=True)
class EnsemblePlan:
    """All members, and the settings that they have in common."""

    folder: Path
    config: RunConfig
    members: Sequence[Member]

    @property
    def section(self) -> EnsembleSection:
        """The settings of the ensemble itself."""
        return self.config.ensemble or EnsembleSection()

    def folder_of(self, member: Member) -> Path:
        """Return the run folder of a member."""
        return self.folder / "members" / member.name


def plan_members(
    base: RunConfig, path: Path | None, overrides: Sequence[str], folder: Path, data_path: Sequence[str] | None = None
) -> EnsemblePlan:
    """Return the members of `base`, the configuration of the YAML file `path` and `overrides`.

    The seed changes slowest, so that further seeds add members after the others. `data_path` is for members that name
    no data. Raises ConfigError for settings that an ensemble cannot have.
    """
    check_members(base)
    plan = EnsemblePlan(folder, base, [])
    section = plan.section
    folds: Sequence[int | None] = range(section.folds) if section.folds else (None,)
    settings = [_with_settings(base, path, overrides, varied) for varied in combinations(section, base.seed)]
    members: list[Member] = []
    for seed in range(base.seed, base.seed + section.members):
        for setting, (varied, config, problem) in enumerate(settings):
            for fold in folds:
                member = Member(len(members), seed, fold, setting, varied, None, problem)
                own = config and _own(config, member, base, section, str(plan.folder_of(member)), data_path)
                members.append(replace(member, config=own))
    return replace(plan, members=members)


def _with_settings(
    base: RunConfig, path: Path | None, overrides: Sequence[str], varied: Varied
) -> tuple[Varied, RunConfig | None, str]:
    """Return one combination of settings, with its configuration or a message on what is wrong with it."""
    if not varied:
        return varied, base, ""
    # JSON is valid YAML, and the message then names the setting as on a command line.
    own = [f"{key}={json.dumps(value)}" for key, value in varied.items()]
    try:
        config = load_run_config(path, [*overrides, *own]).config
        check_members(config)
    except MpitrainError as error:
        return varied, None, "; ".join(line.removeprefix("command line: ") for line in error.args)
    return varied, config, ""


def _own(
    config: RunConfig, member: Member, base: RunConfig, section: EnsembleSection, folder: str,
    data_path: Sequence[str] | None,
) -> RunConfig:  # fmt: skip
    data: dict[str, Any] = {"split_seed": base.split_seed, "rules": config.data.rules or base.data.rules}
    data["test_split"] = 0.0  # members are not tested
    if member.fold is not None:
        data |= {"folds": section.folds, "fold": member.fold}
    if data_path is not None and not config.data.entries:  # a setting may name data
        data["data_path"] = data_path[0] if len(data_path) == 1 else list(data_path)
    if config.data.entries == base.data.entries:
        config = config.with_split(base.data.held_out_by)
    if "average" in base.training.model_fields_set:  # as for a resumed ensemble
        config = config.with_average(base.training.model_dump()["average"])
    return config.model_copy(
        update={
            "seed": member.seed,
            "data": config.data.model_copy(update=data),
            "output": config.output.model_copy(update={"model_dir": folder}),
            "ensemble": None,
        }
    )


def describe_plan(plan: EnsemblePlan, num_groups: int, world_size: int) -> str:
    """Return the line that announces an ensemble."""
    folds = plan.section.folds
    num_settings = max(member.setting for member in plan.members) + 1
    factors: Sequence[tuple[int, str]] = (
        (plan.section.members, "seeds"),
        (num_settings, "settings"),
        (folds or 1, "folds"),
    )
    parts = " x ".join(f"{count} {noun}" for count, noun in factors if count > 1)
    return (
        f"mpitrain: {_count(len(plan.members), 'member')}{f' ({parts})' if parts else ''} on "
        f"{_count(world_size, 'rank')} in {_count(num_groups, 'group')}; folder {plan.folder}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def num_groups_for(plan: EnsemblePlan, todo: Sequence[Member], world_size: int) -> int:
    """Return the number of groups of ranks: of one rank each, or of more if there are fewer members than ranks.

    No group is larger than the `training.virtual_ranks` that a member sets: more ranks would change its results.
    """
    per_member = plan.section.ranks_per_member
    wanted = len(todo) if per_member == "auto" else max(1, round(world_size / per_member))
    named = (one.config.training.virtual_ranks for one in todo if one.config is not None)
    virtual_ranks = min((number for number in named if number is not None), default=world_size)
    return max(1, min(world_size, max(wanted, -(-world_size // virtual_ranks))))
