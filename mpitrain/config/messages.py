"""One line for the first thing that is wrong: place, value, what is allowed, and how many more there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError
from yaml import ScalarNode, SequenceNode

from mpitrain.config.allowed import KeySchema
from mpitrain.config.checks import CROSS_CHECK, Problem
from mpitrain.config.run import RunConfig
from mpitrain.config.settings import KeyPath, Setting
from mpitrain.config.show import one_line, shorten, show_value
from mpitrain.config.yaml_nodes import line_of
from mpitrain.errors import ConfigError, LaunchError

Location = tuple[int | str, ...]

_KIND_WORDS = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}


@dataclass(frozen=True)
class _Finding:
    """One thing that is wrong: its place in reading order, its text when wanted, and whether it concerns the launch."""

    order: tuple[bool, int]
    text: Callable[[], str]
    launch: bool = False


def explain(error: ValidationError, settings: Sequence[Setting]) -> ConfigError | LaunchError:
    """Return the exception to raise for pydantic's findings: the first in the file, then those of the command line."""
    keys = _known_keys()
    findings: dict[object, _Finding] = {}
    for details in error.errors(include_url=False):
        if details["type"] == CROSS_CHECK:
            problems: tuple[Problem, ...] = details["ctx"]["problems"]
            findings.update({problem: _cross_finding(problem, settings) for problem in problems})
        else:
            path, rest = _split(details["loc"], keys)
            findings.setdefault(path, _finding(path, rest, details["type"], settings, keys))
    first, *others = sorted(findings.values(), key=lambda finding: finding.order)
    more = f" (and {len(others)} more)" if others else ""
    return (LaunchError if first.launch else ConfigError)(one_line(first.text()) + more)


@cache
def _known_keys() -> KeySchema:
    return KeySchema(RunConfig.model_json_schema())


def _split(location: Location, keys: KeySchema) -> tuple[KeyPath, Location]:
    """Return the key, and what pydantic adds to it: the alternative of a union, the index in a list."""
    length = 1
    while length < len(location) and keys.is_section(tuple(map(str, location[:length]))):
        length += 1
    return tuple(map(str, location[:length])), location[length:]


def _finding(path: KeyPath, rest: Location, kind: str, settings: Sequence[Setting], keys: KeySchema) -> _Finding:
    if kind == "missing":
        setting, up = _at_or_below(path[:-1], settings)
        place = f"{setting.origin.where(up)}: {'.'.join(path)}"
        return _Finding(setting.origin.order(up), lambda: f"{place}: missing; give {keys.allowed(path)}")
    setting, up = _at_or_below(path, settings)
    if kind == "extra_forbidden":
        noun = "section" if up and len(path) == 1 else "key"
        place = f"{setting.origin.where(up)}: {setting.origin.key(up)}"
        return _Finding(setting.origin.order(up), lambda: f"{place}: unknown {noun}; {keys.suggestion(path)}")
    return _Finding(setting.origin.order(up), lambda: _refused_value(setting, up, rest, keys.allowed(path)))


def _cross_finding(problem: Problem, settings: Sequence[Setting]) -> _Finding:
    setting, up = _at_or_below(tuple(problem.key.split(".")), settings)
    return _Finding(setting.origin.order(up), lambda: _placed(setting, up, problem.what, joint=": "), problem.launch)


def _at_or_below(path: KeyPath, settings: Sequence[Setting]) -> tuple[Setting, int]:
    """Return the setting at a key, or the first below it, and how many names below it stands."""
    found = next(setting for setting in settings if setting.path[: len(path)] == path)
    return found, len(found.path) - len(path)


def _refused_value(setting: Setting, up: int, rest: Location, allowed: str) -> str:
    """Say what is wrong with a value; a list is told by its first wrong item, at that item's line."""
    index = rest[0] if rest and isinstance(rest[0], int) else None
    if index is not None and not up and isinstance(setting.origin.node, SequenceNode):
        return _refused_value(_item(setting, index), 0, (), "text, not empty")
    value: Any = {} if up else setting.value
    if isinstance(value, bool | int | float) and allowed.startswith("text"):
        reads = f"{_KIND_WORDS[type(value)]} to YAML"
        return _placed(setting, up, f'{reads}; put it in quotes for text: "{_as_written(setting)}"')
    return _placed(setting, up, f"{_verdict(value, allowed)}; give {allowed}")


def _item(setting: Setting, index: int) -> Setting:
    origin = setting.origin
    node = origin.node.value[index]
    spelled = (*origin.spelled[:-1], f"{origin.spelled[-1]}[{index}]")
    lines = (*origin.lines[:-1], line_of(node))
    return replace(setting, value=setting.value[index], origin=replace(origin, spelled=spelled, lines=lines, node=node))


def _verdict(value: object, allowed: str) -> str:
    """Say what a value is, where that is what is wrong with it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    if isinstance(value, float) and "a number" not in allowed and "whole number" in allowed:
        return "not a whole number"
    kind = _KIND_WORDS.get(type(value), "")
    fits = kind == "a number" and ("number" in allowed or "power" in allowed)
    fits = fits or (kind == "text" and ("text" in allowed or "one of" in allowed))
    return "not allowed" if fits or not kind else kind


def _placed(setting: Setting, up: int, what: str, joint: str = " is ") -> str:
    """Join place, key, value and what is wrong; an override is shown as it was typed."""
    origin, value = setting.origin, "a mapping" if up else _as_written(setting)
    if origin.from_command_line and not up:
        return f"{origin.where()}: {origin.key()}={value}: {what}"
    if up:
        return f"{origin.where(up)}: {origin.key(up)}: {what}"
    return f"{origin.where()}: {origin.key()}: {value}{joint}{what}"


def _as_written(setting: Setting) -> str:
    node = setting.origin.node
    if not isinstance(node, ScalarNode) or node.value == "":
        return '""' if setting.value == "" else show_value(setting.value)
    quoted = isinstance(setting.value, str) and node.style is not None
    return f'"{shorten(node.value)}"' if quoted else shorten(node.value)
