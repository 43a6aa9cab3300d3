"""Settings that are accepted and of no effect yet: the one table of them. Delete a line when its key starts to work."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from mpitrain.config.run_config import RunConfig
from mpitrain.config.show import show_value

# Key, and what to say beside "not used yet" where that needs a word more.
NOT_USED_YET: dict[str, str] = {
    "data.num_workers": "",
}


def not_used_notices(config: RunConfig) -> tuple[str, ...]:
    """Return one line for each key of the table whose value is not its default."""
    defaults = RunConfig()
    return tuple(
        _notice(key, value_at(config, key), note)
        for key, note in NOT_USED_YET.items()
        if value_at(config, key) != value_at(defaults, key)
    )


def value_at(config: RunConfig, key: str) -> Any:
    """Return the value at a dotted key; None where a section on the way is null."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name) if isinstance(value, BaseModel) else None
    return value


def _notice(key: str, value: object, note: str) -> str:
    return f"{key}={show_value(value)}: accepted, not used yet" + (f": {note}" if note else "")
