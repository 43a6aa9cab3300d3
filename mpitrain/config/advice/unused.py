"""A line for each setting that is given and has no effect beside the others: nothing is passed over silently.

What the devices and the network decide, and not the settings alone, is said where they are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpitrain.config.checks import sections_of
from mpitrain.config.run import RunConfig
from mpitrain.config.section import Section
from mpitrain.config.yaml import Setting, show_value


def unused_settings(config: Section) -> Iterator[str]:
    """Yield a line for each setting that is given and has no effect beside the others."""
    for name, section in sections_of(config):
        for key, (is_used, why) in section.needs.items():
            value = getattr(section, key)
            # What stands at its default was hardly meant: a run's own config.yaml has all of them.
            if value != type(section).model_fields[key].default and not is_used(config):
                yield f"{name}.{key}={show_value(value)}: {why}"


def foreign_options(config: RunConfig, settings: Sequence[Setting]) -> Iterator[str]:
    """Yield a line for each option that is given and belongs to another component than the one that is named."""
    for key, (room, component) in config.components.items():
        path = tuple(key.split("."))
        for setting in settings:
            is_below = setting.path[: len(path)] == path != setting.path
            option = setting.path[len(path)] if is_below else room.name_field
            if option in type(component).model_fields or room.is_default(option, setting.value):
                continue
            owners = " and ".join(room.owners(option)) or "code of other packages"
            what = f"of no effect, an option of {owners}: {room.type_key} is {component.name}"
            yield f"{'.'.join(setting.path)}={show_value(setting.value)}: {what}"
