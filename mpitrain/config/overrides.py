"""Settings from the command line, `training.epochs=50`, and how they win over a file's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpitrain.config.settings import COMMAND_LINE, KeyPath, Setting
from mpitrain.config.show import shorten
from mpitrain.config.spellings import current_path, overlap, to_current_spelling
from mpitrain.config.yaml_source import parse_settings
from mpitrain.errors import ConfigError

_TWO_BATCH_SIZES = {("training", "batch_size"), ("training", "global_batch_size")}


def apply_overrides(file: Sequence[Setting], overrides: Sequence[str]) -> tuple[Setting, ...]:
    """Return the settings with the overrides in the place of the file's. Of two overrides the later wins.

    An override sets its whole key: `training.optimizer={type: adam}` leaves nothing of the file's optimiser.
    Raises ConfigError for an override that is not KEY=VALUE, or whose value is not YAML.
    """
    from_file, from_command_line = tuple(file), tuple[Setting, ...]()
    for override in overrides:
        key, written = _parse(override)
        new = to_current_spelling(written)
        replaced = {current_path(key), *(setting.path for setting in new)}
        from_command_line = (*_without(from_command_line, replaced), *new)
        # One batch size on the command line stands for both of the file's: they are two ways to say one thing.
        if any(setting.path in _TWO_BATCH_SIZES and setting.value is not None for setting in new):
            replaced |= _TWO_BATCH_SIZES
        from_file = _without(from_file, replaced)
    return (*from_file, *from_command_line)


def _parse(override: str) -> tuple[KeyPath, tuple[Setting, ...]]:
    dotted, equals, text = override.partition("=")
    key = tuple(name.strip() for name in dotted.split("."))
    shown = shorten(override)
    if not equals or not all(key):
        raise ConfigError(f"{COMMAND_LINE}: {shown}: not a setting; write KEY=VALUE, such as training.epochs=50")
    return key, parse_settings(text, COMMAND_LINE, lambda line: f"{COMMAND_LINE}: {shown}", above=key)


def _without(settings: Iterable[Setting], paths: set[KeyPath]) -> tuple[Setting, ...]:
    return tuple(setting for setting in settings if not any(overlap(setting.path, path) for path in paths))
