"""Conversion of the Python functions' arguments to command-line arguments, so that settings are read and checked once.

Both interfaces thus have the same settings and the same messages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.errors import ConfigError

if TYPE_CHECKING:
    from mpitrain.data import Asked

SHORT_NAMES = {
    "inputs": "variables.input_variables",
    "targets": "variables.output_variables",
    "output": "output.model_dir",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "lr": "training.optimizer.learning_rate",
}
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_YAML_KEYWORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


def to_overrides(
    settings: str | os.PathLike[str] | Mapping[str, Any] | None, more: Mapping[str, Any]
) -> tuple[Path | None, list[str]]:
    """Return the YAML file, if `settings` is its path, and all other settings as `key.path=value`; None is left out.

    A mapping yields one override for each setting of a section, or for each dotted key. Raises ConfigError.
    """
    path, overrides = None, []
    if isinstance(settings, Mapping):
        overrides = [f"{key}={_yaml(value)}" for key, value in _flat(settings)]
    elif settings is not None:
        path = Path(settings)
    given = {SHORT_NAMES.get(name, name): value for name, value in more.items() if value is not None}
    overrides += [f"{key}={_yaml(value)}" for key, value in _flat(given)]
    return path, overrides


def is_plain(value: Any) -> bool:
    """Return whether a value is None, a path or a list of paths, not data in memory."""
    several = value if isinstance(value, list | tuple) else [value]
    return all(one is None or isinstance(one, str | os.PathLike) for one in several)


def data_override(files: Sequence[str] | None, key: str = "data.data_path") -> list[str]:
    """Return the override that sets `key` to the data files; an empty list if `files` is None."""
    if files is None:
        return []
    return [f"{key}={json.dumps(files[0] if len(files) == 1 else list(files), ensure_ascii=False)}"]


def needed_variables(path: Path | None, overrides: Sequence[str], may_lack_targets: bool = False) -> Asked:
    """Return the variables that the settings need from the data. Raises ConfigError for wrong settings."""
    from mpitrain.config import load_run_config
    from mpitrain.data import Asked

    config = load_run_config(path, overrides).config
    variables, data = config.variables, config.data
    inputs, targets = variables.input_variables, variables.output_variables
    if inputs is None or targets is None:
        return Asked()
    others = [*(targets if may_lack_targets else ()), *data.named_coordinates.values()]
    others += [one for one in (data.area_variable, data.group) if one is not None]
    return Asked((*inputs, *(() if may_lack_targets else targets)), config.domain.mask, tuple(others))


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a mapping inside a section is a single value, as in a YAML file."""
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"settings: {name!r}: not the name of a setting; give text such as 'training.epochs'")
        if isinstance(value, Mapping) and "." not in name:
            yield from ((f"{name}.{key}", one) for key, one in value.items())
        else:
            yield name, value


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line. Raises ConfigError if it is not a plain value."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_KEYWORDS:
        return value  # unquoted, as a user would type it
    try:
        return json.dumps(value, default=_plain)
    except TypeError as error:
        raise ConfigError(f"settings: {error}; give numbers, text, lists and mappings") from None


def _plain(value: Any) -> Any:
    """Return numpy scalars and arrays, paths, mappings, sequences and sets as plain values."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a value of a setting")
