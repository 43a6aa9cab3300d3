"""Loading of a `RunConfig` from a file and overrides, in the order: read, rename keys, override, validate, resolve."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mpitrain.config.advice.defaults import OpenSettings
from mpitrain.config.advice.unused import foreign_options, unused_settings
from mpitrain.config.checks import cause_of_any_reduction
from mpitrain.config.messages import explain
from mpitrain.config.older.emulators import read_as_emulator
from mpitrain.config.older.spellings import (
    current_path,
    implied_scheduler,
    implied_semantics,
    options_of_others,
    overlap,
    refuse_given_twice,
    replaced_by,
    to_current_spelling,
    without_default_pole,
    without_unused,
)
from mpitrain.config.run import RunConfig
from mpitrain.config.section import stated_values
from mpitrain.config.yaml import COMMAND_LINE, KeyPath, Setting, parse_settings, read_settings, render_tree, shorten
from mpitrain.errors import ConfigError

_DATA_PATH = ("data", "data_path")
_TWO_BATCH_SIZES = {("training", "batch_size"), ("training", "global_batch_size")}


@dataclass(frozen=True)
class LoadedConfig:
    """A validated configuration, and notices about how it was read."""

    config: RunConfig
    """The configuration, with values that follow from other settings filled in."""
    notices: tuple[str, ...]
    """Lines on settings that are ignored, implied by others or without effect, each to be printed once."""


def load_run_config(path: Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the configuration of a YAML file with overrides.

    Parameters
    ----------
    path : pathlib.Path or None
        The YAML file; None: the defaults.
    overrides : sequence of str
        Settings such as `training.epochs=50`. They take precedence over the file, and later ones over earlier ones.

    Returns
    -------
    LoadedConfig
        Settings that follow from the number of samples are left open; see `OpenSettings`.

    Raises
    ------
    ConfigError
        The file cannot be read, or settings are wrong: a line `file:line: key: problem; advice` or
        `command line: key=value: problem; advice` for each of the first 20 errors.
    LaunchError
        The first error is a backend that the semantics do not support.

    Notes
    -----
    Not collective. Code named by settings is not imported; see `RunConfig.check_code`.
    """
    file = without_default_pole(to_current_spelling(read_settings(path) if path is not None else ()))
    refuse_given_twice(file)
    settings, unused = without_unused(_override(file, overrides))
    settings, answered = read_as_emulator(settings)
    # A key of the C++ program implies the semantics even if the command line replaces its value.
    semantics, implied = implied_semantics((*file, *settings))
    config, resolved = _resolved(_validated((*settings, *implied_scheduler(settings), *semantics)))
    return LoadedConfig(
        config, (*unused, *answered, *implied, *resolved, *unused_settings(config), *foreign_options(config, settings))
    )


def load_settings_tree(tree: Mapping[str, Any], name: str) -> LoadedConfig:
    """Return the configuration of nested mappings, for example from a record.

    Parameters
    ----------
    tree : mapping
        Values by section and key. A key is a single name: a dotted key is unknown, as in a file.
    name : str
        Location of the settings in messages.

    Returns
    -------
    LoadedConfig
        Without notices on settings that are ignored or without effect.

    Raises
    ------
    ConfigError, LaunchError
        As for `load_run_config`.
    """
    settings = without_default_pole(to_current_spelling(parse_settings(render_tree(tree, name), name, lambda _: name)))
    refuse_given_twice(settings)
    config, notices = _resolved(_validated((*settings, *implied_scheduler(settings))))
    return LoadedConfig(config, notices)


def overridden_keys(overrides: Sequence[str]) -> frozenset[str]:
    """Return the current dotted keys that overrides set.

    Parameters
    ----------
    overrides : sequence of str
        Settings such as `training.epochs=50`, also with keys of other trainers.

    Returns
    -------
    frozenset of str
        Current keys; a mapping as value counts as one key for each of its entries.

    Raises
    ------
    ConfigError
        An override is not KEY=VALUE, its value is not YAML, or it cannot be translated.
    """
    return frozenset(".".join(setting.path) for setting in _override((), overrides))


def _override(file: tuple[Setting, ...], overrides: Sequence[str]) -> tuple[Setting, ...]:
    """Return the settings of the file with the overrides applied. The last override of a key takes precedence.

    An override replaces its whole key: `training.optimizer={type: adam}` removes all options in the file, while
    `training.optimizer=adam` removes only the `options` of other code.
    Raises ConfigError for an override that is not KEY=VALUE, or if its value is not YAML.
    """
    from_command_line: tuple[Setting, ...] = ()
    for override in overrides:
        key, written = _parse(override)
        new = to_current_spelling(written)
        replaced = replaced_by(key, new)
        from_command_line = (*_without(from_command_line, replaced), *new)
        # A batch size on the command line replaces both batch sizes of the file: they set the same quantity.
        if any(setting.path in _TWO_BATCH_SIZES and setting.value is not None for setting in new):
            replaced |= _TWO_BATCH_SIZES
        file = _without(file, replaced | options_of_others(file, new))
    return (*file, *from_command_line)


def _parse(override: str) -> tuple[KeyPath, tuple[Setting, ...]]:
    dotted, equals, text = override.partition("=")
    key = tuple(name.strip() for name in dotted.split("."))
    shown = shorten(override)
    if not equals or not all(key):
        raise ConfigError(f"{COMMAND_LINE}: {shown}: not a setting; write KEY=VALUE, such as training.epochs=50")
    if not text.strip():
        raise ConfigError(
            f"{COMMAND_LINE}: {shown}: no value, perhaps from an unset variable; to set null write {dotted}=null"
        )
    if current_path(key) == _DATA_PATH and _is_pattern(text):
        text = json.dumps(text, ensure_ascii=False)
    return key, parse_settings(text, COMMAND_LINE, lambda line: f"{COMMAND_LINE}: {shown}", above=key)


def _is_pattern(text: str) -> bool:
    """Return whether a value of `data.data_path` is a file pattern that YAML would read as an alias or a list."""
    return text.startswith(("*", "?")) or (text.startswith("[") and "]" in text and not text.rstrip().endswith("]"))


def _without(settings: Iterable[Setting], paths: set[KeyPath]) -> tuple[Setting, ...]:
    return tuple(setting for setting in settings if not any(overlap(setting.path, path) for path in paths))


def _validated(settings: Sequence[Setting]) -> RunConfig:
    try:
        return RunConfig.model_validate(_nested(settings))
    except ValidationError as error:
        raise explain(error, settings) from None


def _nested(settings: Sequence[Setting]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for setting in settings:
        section = tree
        for name in setting.path[:-1]:
            section = section.setdefault(name, {})
        section[setting.path[-1]] = setting.value
    return tree


def _resolved(config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the configuration with implied values filled in, and notices about them."""
    config = OpenSettings(config).with_network().config
    cause = cause_of_any_reduction(config.training, config.distributed)
    if config.semantics == "reference":
        if config.compute.backend == "nccl_if_available":
            notice = "compute.backend=nccl_if_available: semantics reference needs MPI; replaced by auto"
            return _with(config, "compute", backend="auto"), (notice,)
    elif cause is not None and config.training.reduction is None:
        notice = f"{cause}: implies training.reduction=any: results are equal to rounding only"
        return _with(config, "training", reduction="any"), (notice,)
    return config, ()


def _with(config: RunConfig, section: str, **values: Any) -> RunConfig:
    """Return a validated configuration with other values in one section; no other values become stated values."""
    tree = stated_values(config)
    return RunConfig.model_validate({**tree, section: {**tree.get(section, {}), **values}})
