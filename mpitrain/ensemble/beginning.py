"""The beginning of an ensemble: its settings and folder, its members, and what a resumed one has done already."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.durable_files import write_durably
from mpitrain.ensemble.plan.members import EnsemblePlan, plan_members
from mpitrain.errors import ConfigError, OutputError
from mpitrain.runs.beginning import SAMPLES_A_TIME
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.run_folder import RunFolder

DEFAULT_FOLDER = "mpitrain_ensemble"


@dataclass(frozen=True)
class EnsembleRequest:
    """What the command line asks for."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    dry_run: bool = False


def load_settings(request: EnsembleRequest) -> LoadedConfig:
    """Return the settings that all members start from, with the ensemble's folder. Raises ConfigError."""
    loaded = load_run_config(request.config_path, request.overrides)
    is_named = loaded.config.output.model_dir != RunConfig().output.model_dir
    overrides = request.overrides if is_named else (*request.overrides, f"output.model_dir={DEFAULT_FOLDER}")
    path = request.config_path
    if request.resume and path is None:
        folder = RunFolder(Path(load_run_config(None, overrides).config.output.model_dir))
        if not folder.config.exists():
            raise ConfigError(f"--resume: {folder.path} holds no ensemble; name its folder with --output FOLDER")
        path = folder.config
    loaded = load_run_config(path, overrides)
    return LoadedConfig(loaded.config, (*loaded.notices, *_of_no_effect(loaded.config)))


def _of_no_effect(config: RunConfig) -> list[str]:
    notices = []
    if config.tracking.is_on:
        notices.append("tracking: of no effect on an ensemble; each of its members has a metrics.jsonl")
    if config.data.test_entries:
        what = "predict them with the ensemble's folder"
        notices.append(f"data.test_path: of no effect on an ensemble, whose members are not tested; {what}")
    return notices


def plan_ensemble(request: EnsembleRequest, config: RunConfig) -> EnsemblePlan:
    """Return the members that `config`, of `load_settings`, asks for. Raises ConfigError."""
    folder = Path(config.output.model_dir)
    path = request.config_path
    if request.resume and path is None:
        path = RunFolder(folder).config
    synthetic = None if config.data.entries else [str(RunFolder(folder).synthetic_history)]
    plan = plan_members(config, path, request.overrides, folder, synthetic)
    if all(member.config is None for member in plan.members):
        raise ConfigError(f"no member can be trained: {plan.members[0].problem}")
    return plan


def prepare_folder(plan: EnsemblePlan, request: EnsembleRequest) -> None:
    """Make the ensemble's folder, with its settings and its synthetic data. For the root. Raises OutputError."""
    folder = RunFolder(plan.folder)
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
    folder.create()
    write_durably(folder.config, render_yaml(plan.config.model_copy(update={"ensemble": plan.section})).encode())
    wanted = [str(folder.synthetic_history)]
    is_wanted = any(member.config is not None and member.config.data.entries == wanted for member in plan.members)
    if is_wanted and not folder.synthetic_history.exists():
        num_times = -(-(plan.config.data.num_samples or 1) // SAMPLES_A_TIME)
        write_synthetic_history(folder.synthetic_history, seed=plan.config.seed, num_times=num_times)


def _check_members(plan: EnsemblePlan) -> None:
    """Raise OutputError where a member's folder holds a run with other settings than the resumed ensemble's."""
    for member in plan.members:
        file = RunFolder(plan.folder_of(member)).config
        if member.config is None or not file.exists():
            continue
        found = load_run_config(file).config
        if _without_stop(found) != _without_stop(member.config):
            raise OutputError(
                f"{file}: holds other settings than this ensemble gives member {member.name} "
                f"({_first_difference(found, member.config)}); resume with the settings that it began with, or choose "
                "another --output"
            )


def _without_stop(config: RunConfig) -> RunConfig:
    # A search stops members early by this setting.
    return config.model_copy(update={"training": config.training.model_copy(update={"max_steps": None})})


def _first_difference(one: RunConfig, other: RunConfig) -> str:
    here, there = (_without_stop(config).model_dump() for config in (one, other))
    for section, values in here.items():
        if isinstance(values, dict) and isinstance(there[section], dict):
            for key, value in values.items():
                if there[section][key] != value:
                    return f"{section}.{key}={value} there, {there[section][key]} here"
        elif values != there[section]:
            return f"{section}={values} there, {there[section]} here"
    return "the file"
