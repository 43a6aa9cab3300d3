"""The start of an ensemble: its settings, its members, and its folder, which may be that of a resumed ensemble."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.config import (
    NEWEST_RULES,
    DataSection,
    LoadedConfig,
    OpenSettings,
    RunConfig,
    SampleCount,
    TrackingSection,
    load_run_config,
    render_yaml,
)
from mpitrain.config.older.spellings import HALVING
from mpitrain.config.yaml import read_settings
from mpitrain.data import open_source_on_root, selection_of
from mpitrain.data.dataset.exchange import count_usable
from mpitrain.data.dataset.split import resolved_split
from mpitrain.ensemble.plan.members import EnsemblePlan, plan_members
from mpitrain.errors import ConfigError, MpitrainError, OutputError
from mpitrain.runs.layout import grid_for_defaults
from mpitrain.synthetic.stand_in import check_stand_in, write_stand_in
from mpitrain.train import RunFolder, load_folder_settings, remember_code_of, trusts_code_of, with_recorded_rules
from mpitrain.train.folder.claim import refuse_if_used
from mpitrain.train.folder.settings import (
    code_in,
    is_plain_name,
    load_passed_settings,
    load_settings_to_resume,
    refuse_code,
    refuse_outputs_elsewhere,
)
from mpitrain.train.run_folder import refuse_link

DEFAULT_FOLDER = "mpitrain_ensemble"


@dataclass(frozen=True)
class EnsembleRequest:
    """The arguments of one ensemble."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    takes_over: bool = False
    """Use the folder even if another launch has claimed it, unless that launch is known to be running."""
    dry_run: bool = False
    trust_code: bool = False
    """Run Python code that the settings file of a run folder names, such as the network."""


def load_settings(request: EnsembleRequest) -> LoadedConfig:
    """Return the settings that all members share, with the ensemble's folder. Raises ConfigError."""
    overrides = _with_folder(request)
    if request.resume and request.config_path is None:
        folder = RunFolder(Path(load_run_config(None, overrides).config.output.model_dir))
        if not folder.config.is_file():
            raise ConfigError(f"--resume: {folder.path} holds no ensemble; name its folder with --output FOLDER")
        loaded = load_settings_to_resume(folder, request.trust_code, overrides)
        _refuse_halving(folder)
    else:
        loaded = load_passed_settings(request.config_path, request.trust_code, overrides)
    recorded = RunFolder(Path(loaded.config.output.model_dir)).config
    config = loaded.config
    if request.resume and recorded.is_file():
        begun = with_recorded_rules(load_run_config(recorded), recorded).config
        config = config.with_rules(begun.data.rules or NEWEST_RULES).with_split(begun.data.held_out_by)
        config = config.with_average(begun.training.model_dump()["average"])
    config = config.with_rules(NEWEST_RULES)
    return LoadedConfig(config, (*loaded.notices, *_of_no_effect(loaded.config.tracking, loaded.config.data)))


def _with_folder(request: EnsembleRequest) -> tuple[str, ...]:
    named = load_run_config(request.config_path, request.overrides).config.output.model_dir
    is_named = named != RunConfig().output.model_dir
    return request.overrides if is_named else (*request.overrides, f"output.model_dir={DEFAULT_FOLDER}")


def trusts_code(request: EnsembleRequest) -> bool:
    """Return whether code that an ensemble's own settings name may be run. Root only. Raises ConfigError."""
    path = request.config_path
    if path is None:
        path = RunFolder(Path(load_run_config(None, _with_folder(request)).config.output.model_dir)).config
    return trusts_code_of(path.resolve(), request.trust_code)


def _refuse_halving(folder: RunFolder) -> None:
    """Raise ConfigError if the removed `ensemble.halving` was used: members then stopped at different epochs."""
    if any(one.path == HALVING and one.value is not None for one in read_settings(folder.config)):
        raise ConfigError(
            f"--resume: {folder.path} was started with ensemble.halving, which no longer exists; train all its "
            "settings from scratch in another folder, or with --overwrite"
        )


def _of_no_effect(tracking: TrackingSection, data: DataSection) -> list[str]:
    notices = []
    if tracking.is_on:
        notices.append("tracking: has no effect on an ensemble; each of its members has a metrics.jsonl")
    given = {"data.test_path": bool(data.test_entries), "data.test_split": bool(data.test_split)}
    reason = "has no effect on an ensemble, whose members are not tested; predict with the ensemble's folder"
    notices += [f"{key}: {reason}" for key, is_given in given.items() if is_given]
    return notices


def plan_ensemble(request: EnsembleRequest, config: RunConfig) -> EnsemblePlan:
    """Return the plan of the members for `config`, which `load_settings` returned. Raises ConfigError."""
    folder = Path(config.output.model_dir)
    path = request.config_path
    if request.resume and path is None:
        path = RunFolder(folder).config
    synthetic = None if config.data.entries else [str(RunFolder(folder).synthetic_history)]
    plan = plan_members(config, path, request.overrides, folder, synthetic)
    if path != request.config_path:
        _check_code_and_outputs(plan, request, RunFolder(folder).config)
    if all(member.config is None for member in plan.members):
        raise ConfigError(f"no member can be trained: {plan.members[0].problem}")
    return plan


def with_defaults(plan: EnsemblePlan, ranks: Ranks) -> tuple[EnsemblePlan, list[str]]:
    """Return the plan with defaults that follow from the data, the same for all members, and notices. Collective.

    If the files cannot be read, the plan is returned unchanged: its members then fail with the reason.
    """
    base, entries = OpenSettings(plan.config), plan.config.data.entries
    of_data = [one.config for one in plan.members if one.config is not None and one.config.data.entries == entries]
    is_open = bool(entries and of_data) and of_data[0].data.split == "auto"
    if not base.keys and not is_open:
        return plan, []
    values: Mapping[str, Any] = {}
    notices, settled = list[str](), dict[str, Any]()
    try:
        source = open_source_on_root(selection_of(base.config, to_learn=True), ranks)
        if base.keys:
            size = SampleCount(source.kind, count_usable(source, ranks), grid_for_defaults(source))
            decided = base.decide(size)
            base, values, notices = OpenSettings(decided.config), decided.values, decided.notices
        if is_open:
            settled["split"] = ranks.on_root(lambda: resolved_split(of_data[0].split_data, source))
            if settled["split"] == "time":
                notices = [*notices, "data.split=auto: time; data.split=random draws held-out samples one by one"]
    except MpitrainError:
        return plan, []
    members = []
    for one in plan.members:
        config = one.config and OpenSettings(one.config).stating(values).config
        is_of_data = config is not None and config.data.entries == entries
        members.append(replace(one, config=config.with_split(settled) if config is not None and is_of_data else config))
    return replace(plan, config=base.config.with_split(settled), members=members), notices


def _check_code_and_outputs(plan: EnsemblePlan, request: EnsembleRequest, source: Path) -> None:
    """Raise UserError if a member's settings, read from the resumed folder, name code, or outputs outside of it."""
    of_settings = {member.setting: member.config for member in plan.members if member.config is not None}
    for config in of_settings.values():
        refuse_code(source, config, request.trust_code, request.overrides)
        refuse_outputs_elsewhere(source, config, request.overrides)


def prepare_folder(plan: EnsemblePlan, request: EnsembleRequest) -> None:
    """Create the ensemble's folder, with its settings and its synthetic data. Root only. Raises OutputError."""
    folder, model_file = RunFolder(plan.folder), plan.config.output.model_file
    if not is_plain_name(model_file):
        raise OutputError(f"output.model_file={model_file}: each member has its own file; give a name without a folder")
    refuse_link(plan.folder / "members")
    for member in (plan.folder / "members").glob("*"):
        refuse_link(member)
        refuse_if_used(member, request.takes_over)  # by a run on this member alone
        RunFolder(member, model_file).refuse_links()
    if request.resume:
        _check_members(plan)
    elif request.overwrite:
        folder.remove_run()
        shutil.rmtree(plan.folder / "members", ignore_errors=True)
    elif folder.holds_run or (plan.folder / "members").exists():
        raise OutputError(
            f"{plan.folder}: holds a run or an ensemble already; continue it with --resume, replace it with "
            "--overwrite, or choose another --output"
        )
    else:
        folder.check_free()
    folder.create()
    folder.write_settings(render_yaml(plan.config.model_copy(update={"ensemble": plan.section})))
    if not request.trust_code:  # --trust-code holds for this launch only
        remember_code_of(code_in(plan.config.model_copy(update={"ensemble": plan.section})), [folder.config])
    wanted = [str(folder.synthetic_history)]
    is_wanted = any(member.config is not None and member.config.data.entries == wanted for member in plan.members)
    if is_wanted and not (request.resume and folder.synthetic_history.exists()):
        check_stand_in(folder.synthetic_history, request.overwrite)
        write_stand_in(folder.synthetic_history, plan.config.data.num_samples, plan.config.seed)


def _check_members(plan: EnsemblePlan) -> None:
    """Raise OutputError if a member's folder holds a run with other settings than those of the resumed ensemble."""
    for member in plan.members:
        file = RunFolder(plan.folder_of(member)).config
        if member.config is None or not file.exists():
            continue
        # trust_code=True: these settings are only compared, and no code that they name is run.
        found = load_folder_settings(RunFolder(plan.folder_of(member)), trust_code=True).config
        if member.config.data.lag_step_days is None:
            found = found.with_lag_step(None)  # a member records the value of its data
        if member.config.data.split == "auto" and found.data.split not in ("region", "group"):
            found = found.model_copy(update={"data": found.data.model_copy(update={"split": "auto"})})
        there, here = _of_member(found), _of_member(member.config)
        if there != here:
            raise OutputError(
                f"{file}: holds other settings than those of member {member.name} in this ensemble "
                f"({_first_difference(there, here)}); resume with the settings that it was started with, or choose "
                "another --output"
            )


def _of_member(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a member without the paths that depend on where its ensemble's folder is."""
    values = config.model_dump()
    ensemble = RunFolder(Path(values["output"].pop("model_dir")).parent.parent)
    if config.data.entries == [str(ensemble.synthetic_history)]:  # it is moved and copied with the ensemble
        values["data"]["data_path"] = None
    return values


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    for section, values in there.items():
        if isinstance(values, dict) and isinstance(here[section], dict):
            for key in {**values, **here[section]}:
                if values.get(key) != here[section].get(key):
                    return f"{section}.{key}={values.get(key)} there, {here[section].get(key)} here"
        elif values != here[section]:
            return f"{section}={values} there, {here[section]} here"
    return "the file"
