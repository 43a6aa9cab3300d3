"""From a file and overrides to a checked `RunConfig`, in the order: read, respell, override, validate, resolve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mpitrain.config.checks import implies_any_reduction
from mpitrain.config.messages import explain
from mpitrain.config.overrides import apply_overrides
from mpitrain.config.run import RunConfig
from mpitrain.config.section import Section
from mpitrain.config.settings import KeyPath, Setting
from mpitrain.config.spellings import implied_semantics, refuse_given_twice, to_current_spelling, without_unused
from mpitrain.config.yaml_source import read_settings


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration, and the lines that the user is told once about how it was read."""

    config: RunConfig
    notices: tuple[str, ...]


def load_run_config(path: Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the configuration of a YAML file with dotted overrides such as `training.epochs=50`; no file: defaults.

    Raises ConfigError, one line `file:line: key: what; what to do` or `command line: key=value: ...`, for anything
    wrong in them, and LaunchError for a backend that the semantics cannot run on.
    """
    file = to_current_spelling(read_settings(path) if path is not None else ())
    refuse_given_twice(file)
    settings, unused = without_unused(apply_overrides(file, overrides))
    # A C++ key names the semantics also where the command line replaces its value.
    semantics, implied = implied_semantics((*file, *settings))
    config, resolved = _resolved(_validated((*settings, *semantics)))
    return LoadedConfig(config, (*unused, *implied, *resolved))


def _validated(settings: Sequence[Setting]) -> RunConfig:
    # A section without keys, `training:` with all its lines commented out, is an empty one.
    sections = set(_sections(RunConfig, ()))
    kept = [setting for setting in settings if setting.path not in sections or setting.value not in (None, {})]
    try:
        return RunConfig.model_validate(_nested(kept))
    except ValidationError as error:
        raise explain(error, kept) from None


def _sections(model: type[BaseModel], above: KeyPath) -> Iterator[KeyPath]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield (*above, name)
            yield from _sections(field.annotation, (*above, name))


def _nested(settings: Sequence[Setting]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for setting in settings:
        section = tree
        for name in setting.path[:-1]:
            section = section.setdefault(name, {})
        section[setting.path[-1]] = setting.value
    return tree


def _resolved(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the configuration with what some settings imply written out, and a notice for each."""
    notices: tuple[str, ...] = ()
    cause = implies_any_reduction(config)
    if config.semantics == "reference":
        if config.compute.backend == "nccl_if_available":
            config = _with(config, "compute", backend="auto")
            notices += ("compute.backend=nccl_if_available: semantics reference needs MPI; read as auto",)
    elif cause is not None and config.training.reduction is None:
        config = _with(config, "training", reduction="any")
        notices += (f"{cause}: implies training.reduction=any: results are equal to rounding only",)
    return config, notices


def _with(config: RunConfig, section: str, **values: Any) -> RunConfig:
    changed: BaseModel = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})
