"""Notices about settings that are given but have no effect, so that no setting is ignored silently.

Settings without effect because of the devices or the network are reported later, when these are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpitrain.config.checks import sections_of
from mpitrain.config.run import RunConfig
from mpitrain.config.section import Section
from mpitrain.config.yaml import Setting, show_value


def unused_settings(config: Section) -> Iterator[str]:
    """Yield a line for each setting that is given but has no effect in this configuration."""
    for name, section in sections_of(config):
        for key, (is_used, message) in section.needs.items():
            value = getattr(section, key)
            # No notice for default values: the config.yaml of a run contains all of them.
            if value != type(section).model_fields[key].default and not is_used(config):
                yield f"{name}.{key}={show_value(value)}: {message}"


def foreign_options(config: RunConfig, settings: Sequence[Setting]) -> Iterator[str]:
    """Yield a line for each given option that belongs to another component than the named one."""
    for key, (room, component) in config.components.items():
        path = tuple(key.split("."))
        for setting in settings:
            is_below = setting.path[: len(path)] == path != setting.path
            option = setting.path[len(path)] if is_below else room.name_field
            if option in type(component).model_fields or room.is_default(option, setting.value):
                continue
            owners = " and ".join(room.owners(option)) or "code of other packages"
            problem = f"has no effect: it is an option of {owners}, and {room.type_key} is {component.name}"
            yield f"{'.'.join(setting.path)}={show_value(setting.value)}: {problem}"
