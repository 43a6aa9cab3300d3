"""A setting as it was written: key, value and place; the form between YAML text and the checked models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from yaml import Node

from mpitrain.config.show import one_line

COMMAND_LINE = "command line"

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a setting was written: the file's name or `command line`, the words of its key, and a line for each."""

    source: str
    spelled: KeyPath
    lines: tuple[int, ...]
    node: Node

    @property
    def from_command_line(self) -> bool:
        """Whether this was an override."""
        return self.source == COMMAND_LINE

    def where(self, steps_up: int = 0) -> str:
        """Return `file:line` of the key, or of the section that is so many steps above it."""
        return self.source if self.from_command_line else f"{self.source}:{self.line(steps_up)}"

    def line(self, steps_up: int = 0) -> int:
        """Return the line of the key, or of the section that is so many steps above it."""
        return self.lines[max(0, len(self.lines) - 1 - steps_up)]

    def key(self, steps_up: int = 0) -> str:
        """Return the dotted key as it was written, or the section that is so many steps above it."""
        return one_line(".".join(self.spelled[: max(1, len(self.spelled) - steps_up)]))

    def order(self, steps_up: int = 0) -> tuple[bool, int]:
        """Return what sorts settings as a reader meets them: the file by line, then the command line."""
        return self.from_command_line, self.line(steps_up)


@dataclass(frozen=True)
class Setting:
    """One key that is not a section, its value, and where it was written."""

    path: KeyPath
    value: Any
    origin: Origin
