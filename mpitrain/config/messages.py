"""Error messages for settings, one line per error: location, value, and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml import ScalarNode

from mpitrain.config.component import Room
from mpitrain.config.older.synonyms import INSTEAD, NEAREST
from mpitrain.config.run import RunConfig, rooms
from mpitrain.config.section import CROSS_CHECK, Problem
from mpitrain.config.yaml import KeyPath, Setting, line_of, shorten, show_value
from mpitrain.errors import ConfigError, LaunchError

_Schema = dict[str, Any]

_KIND_NAMES = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
# Similarity above which a name is suggested: lower in the same section (typing errors), higher in other sections.
_LIKENESS, _LIKENESS_ELSEWHERE = 0.7, 0.82
_MOST_LINES = 20


@dataclass(frozen=True)
class _Finding:
    """One error: the current key, the setting to report, pydantic's type of error, and the index in a list."""

    path: KeyPath
    setting: Setting
    kind: str
    item: int | None = None
    problem: Problem | None = None


def explain(error: ValidationError, settings: Sequence[Setting]) -> ConfigError | LaunchError:
    """Return the exception for pydantic's errors, one line each: first those of the file, then of the command line."""
    findings: dict[KeyPath, _Finding] = {}
    for details in error.errors(include_url=False):
        for finding in _findings(details, settings):
            # Pydantic reports a value once for each alternative of a union that does not match.
            findings.setdefault(finding.path, finding)
    ordered = sorted(findings.values(), key=lambda finding: finding.setting.order)
    lines = [_text(finding, settings) for finding in ordered[:_MOST_LINES]]
    more = [f"and {len(ordered) - _MOST_LINES} more"] if len(ordered) > _MOST_LINES else []
    kind = LaunchError if ordered[0].problem and ordered[0].problem.launch else ConfigError
    return kind(*lines, *more)


def _findings(details: ErrorDetails, settings: Sequence[Setting]) -> Iterator[_Finding]:
    kind = details["type"]
    if kind == CROSS_CHECK:
        for problem in details["ctx"]["problems"]:
            path = tuple(problem.key.split("."))
            yield _Finding(path, _setting_at(path, settings), kind, problem=problem)
        return
    path, rest = _split(details["loc"])
    item = rest[0] if rest and isinstance(rest[0], int) else None
    yield _Finding(path, _setting_at(path[:-1] if kind == "missing" else path, settings), kind, item)


def _split(location: tuple[int | str, ...]) -> tuple[KeyPath, tuple[int | str, ...]]:
    """Return the key, and what pydantic appends to it: the alternative of a union or the index in a list."""
    names, length = tuple(map(str, location)), 1
    while length < len(names) and is_section(names[:length]):
        length += 1
    return names[:length], location[length:]


def _setting_at(path: KeyPath, settings: Sequence[Setting]) -> Setting:
    """Return the setting with a key; for the key of a section, the section as a setting at its own line."""
    while not any(setting.path[: len(path)] == path for setting in settings):
        path = path[:-1]  # a component given only by its name
    found = next(setting for setting in settings if setting.path[: len(path)] == path)
    levels_up = len(found.path) - len(path)
    return found.section(levels_up) if levels_up else found


def _text(finding: _Finding, settings: Sequence[Setting]) -> str:
    path, setting = finding.path, finding.setting
    if finding.problem:
        return _placed(setting, finding.problem.what, joint=": ")
    if finding.kind == "missing":
        return f"{setting.where}: {'.'.join(path)}: missing; give {allowed_values(path)}"
    if finding.kind == "extra_forbidden":
        noun = "section" if len(path) == 1 and isinstance(setting.value, dict) else "key"
        advice = _suggestion_of_component(path, settings) or suggestion(path)
        return f"{setting.where}: {setting.key}: unknown {noun}; {advice}"
    if finding.item is not None and isinstance(setting.value, list):
        options = known_keys()[path]["anyOf"]
        allowed = next(describe_values(option["items"]) for option in options if "items" in option)
        return _refused_value(_item(setting, finding.item), allowed)
    return _refused_value(setting, allowed_values(path))


def _suggestion_of_component(path: KeyPath, settings: Sequence[Setting]) -> str | None:
    """Return advice for an option that a component does not have, or None for keys outside of components."""
    room = room_of(path)
    is_elsewhere = any(key[-1] == path[-1] and key[:-1] != path[:-1] for key in known_keys())
    if room is None or is_elsewhere or path[-1] in INSTEAD or path[-1] in NEAREST:
        return None
    given = (setting.value for setting in settings if setting.path == (*path[:-1], room.name_field))
    name = next(given, room.default)
    options = [option for option in room.component(name).model_fields if option != room.name_field]
    near = _nearest(path[-1], options, _LIKENESS) or _part_of(path[-1], options)
    return (
        f"did you mean '{'.'.join((*path[:-1], near))}'?"
        if near
        else f"{name or path[-2]} has {', '.join(options) or 'no options'}"
    )


def room_of(path: KeyPath) -> Room | None:
    """Return the component registry that `path` is an option of, or None outside of components."""
    return next((room for room in rooms() if tuple(room.key.split(".")) == path[:-1]), None)


def _item(setting: Setting, index: int) -> Setting:
    """Return an item of a list as a setting of its own, with its own line."""
    node = setting.node.value[index]
    spelled = (*setting.spelled[:-1], f"{setting.spelled[-1]}[{index}]")
    lines = (*setting.lines[:-1], line_of(node))
    return replace(setting, value=setting.value[index], node=node, spelled=spelled, lines=lines)


def _refused_value(setting: Setting, allowed: str) -> str:
    if isinstance(setting.value, bool | int | float) and allowed.startswith("text"):
        reads = f"{_KIND_NAMES[type(setting.value)]} in YAML"
        return _placed(setting, f'{reads}; put it in quotes to make it text: "{_as_written(setting)}"')
    return _placed(setting, f"{_verdict(setting.value, allowed)}; give {allowed}")


def _verdict(value: object, allowed: str) -> str:
    """Return the kind of a value, or `not allowed` if the kind is right but the value is not."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not a finite number"
    if isinstance(value, float) and "a number" not in allowed and "whole number" in allowed:
        return "not a whole number"
    kind = _KIND_NAMES.get(type(value), "")
    fits = kind == "a number" and ("number" in allowed or "power" in allowed)
    fits = fits or (kind == "text" and ("text" in allowed or "one of" in allowed))
    return "not allowed" if fits or not kind else kind


def _placed(setting: Setting, what: str, joint: str = " is ") -> str:
    """Return location, key, value and problem; an override is shown as typed, a mapping by its key only."""
    if isinstance(setting.value, dict):
        return f"{setting.where}: {setting.key}: {what}"
    if setting.from_command_line:
        return f"{setting.where}: {setting.key}={_as_written(setting)}: {what}"
    return f"{setting.where}: {setting.key}: {_as_written(setting)}{joint}{what}"


def _as_written(setting: Setting) -> str:
    node = setting.node
    if not isinstance(node, ScalarNode) or node.value == "":
        return '""' if setting.value == "" else show_value(setting.value)
    quoted = isinstance(setting.value, str) and node.style is not None
    return f'"{shorten(node.value)}"' if quoted else shorten(node.value)


@cache
def known_keys() -> dict[KeyPath, _Schema]:
    """Return the JSON schema of every section and key of a run; references below `anyOf` are resolved."""
    schema = RunConfig.model_json_schema()
    found: dict[KeyPath, _Schema] = {}
    for path, field in _walk(schema, (), schema["$defs"]):
        found[path] = _joined(found[path], field) if path in found else field
    for room in rooms():
        of_name = found[(*room.key.split("."), room.name_field)]
        of_name |= {"default": room.default}
        if room.default is None and not room.may_be_unnamed:
            del of_name["default"]
    return found


def _joined(one: _Schema, other: _Schema) -> _Schema:
    """Return the merged schema of an option that several components have."""
    both = (*one["anyOf"], *other["anyOf"])
    names = list(dict.fromkeys(name for option in both for name in (*option.get("enum", ()), *_constant(option))))
    others = {describe_values(option): option for option in both if not {"const", "enum"} & set(option)}
    rest = sorted(others.values(), key=lambda option: option.get("type") == "null")  # null last
    texts = dict.fromkeys(schema.get("description", "") for schema in (one, other))
    text = " ".join(text for text in texts if text)
    return {**other, **one, "description": text, "anyOf": [*([{"enum": names}] if names else []), *rest]}


def _constant(schema: _Schema) -> list[str]:
    return [schema["const"]] if "const" in schema else []


def _walk(schema: _Schema, above: KeyPath, definitions: _Schema) -> Iterator[tuple[KeyPath, _Schema]]:
    for name, field in schema.get("properties", {}).items():
        options = field.get("anyOf", [field])
        options = [definitions[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in options]
        default: _Schema = {} if name in schema.get("required", ()) else {"default": {}}
        yield (*above, name), {**default, **field, "anyOf": options}
        for option in options:
            yield from _walk(option, (*above, name), definitions)


def is_section(path: KeyPath) -> bool:
    """Return whether the key is a section, which has keys below it."""
    return path in known_keys() and any("properties" in option for option in known_keys()[path]["anyOf"])


def allowed_values(path: KeyPath) -> str:
    """Return the allowed values of a key as text, such as `a whole number, at least 1, or null`."""
    return ", or ".join(map(describe_values, known_keys()[path]["anyOf"]))


def describe_values(schema: _Schema) -> str:
    """Return the values allowed by a JSON schema as text, such as `a whole number, at least 1`."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    match schema["type"]:
        case "integer":
            return f"a whole number{_bounds(schema)}"
        case "number":
            return f"a number{_bounds(schema)}"
        case "object":
            # A mapping with arbitrary keys, for example keys of other sections, has no properties.
            return f"a mapping of keys such as {next(iter(schema.get('properties', ['model.hidden_size'])))}"
        case "array":
            return (
                f"a list of {schema['minItems']} numbers" if "maxItems" in schema else "a list of names such as [a, b]"
            )
        case kind:
            return {"null": "null", "boolean": "true or false", "string": "text, not empty"}[kind]


def _bounds(schema: _Schema) -> str:
    bounds_of_keys = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    # Every whole number is bounded by the largest 64-bit integer: not shown.
    bounds = [
        f"{phrase} {schema[key]:g}" for key, phrase in bounds_of_keys.items() if key in schema and schema[key] < 2**62
    ]
    return ", " + " and ".join(bounds) if bounds else ""


def suggestion(path: KeyPath) -> str:
    """Return advice for an unknown key: its meaning in other trainers, else the nearest name, else all names."""
    name, keys = path[-1], {".".join(key): key for key in known_keys()}
    siblings = [key[-1] for key in keys.values() if key[:-1] == path[:-1]]
    if name in INSTEAD:
        return INSTEAD[name]
    if name in keys and "." in name:
        section, _, key = name.rpartition(".")
        return f"write '{key}' below '{section.replace('.', ': ')}:'"
    # The same name in another section takes precedence over a similar name in this section.
    elsewhere = next((dotted for dotted, key in keys.items() if name == key[-1]), None)
    near = NEAREST.get(name) or elsewhere or _nearest(name, siblings, _LIKENESS) or _part_of(name, siblings)
    near = near or _alike_anywhere(name, keys)
    section = "".join(f"{above}." for above in path[:-1])
    return f"did you mean '{near.removeprefix(section)}'?" if near else f"allowed: {', '.join(siblings)}"


def _alike_anywhere(name: str, keys: Mapping[str, KeyPath]) -> str | None:
    like = _nearest(name, [*keys, *(key[-1] for key in keys.values())], _LIKENESS_ELSEWHERE)
    return next((dotted for dotted, key in keys.items() if like in (key[-1], dotted)), None)


def _nearest(name: str, names: Sequence[str], likeness: float) -> str | None:
    spelled = name.lower().replace(" ", "_").replace("-", "_")
    return next(iter(difflib.get_close_matches(spelled, names, n=1, cutoff=likeness)), None)


def _part_of(name: str, names: Sequence[str]) -> str | None:
    return next((known for known in names if len(name) > 3 and name in known), None)
