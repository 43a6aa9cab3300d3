"""`mpitrain config explain KEY`: a setting's meaning, allowed values, default, and other trainers' names for it."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mpitrain.config.component import CODE_PATTERN
from mpitrain.config.messages import allowed_values, describe_values, is_section, known_keys, room_of, suggestion
from mpitrain.config.named_code import CodeComponent
from mpitrain.config.older.spellings import current_path
from mpitrain.config.older.synonyms import INSTEAD, SAME
from mpitrain.config.yaml import show_value
from mpitrain.errors import UserError, one_line

_WIDTH = 100


def explain_settings(queries: list[str]) -> str:
    """Return a paragraph for each setting that matches a query; without queries, for all settings.

    A query is a key, a section, a part of a name or another trainer's name. Raises UserError if nothing matches.
    """
    fields = _all_fields()
    named = [key for query in queries for key in _named_by(query, fields)] if queries else list(fields)
    return "\n".join(_paragraph(key, fields[key]) for key in dict.fromkeys(named))


def keys_in(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted keys of the settings in nested mappings."""
    for name, value in values.items():
        key = f"{above}{name}"
        is_nested = isinstance(value, dict) and is_section(tuple(key.split(".")))
        yield from keys_in(value, f"{key}.") if is_nested else (key,)


@cache
def _all_fields() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each dotted key; a section precedes its keys."""
    return {".".join(path): {"description": _of_class(field), **field} for path, field in known_keys().items()}


def _of_class(field: dict[str, Any]) -> str:
    """Return the description of a section's class, for fields of sections without one of their own."""
    return next((option["description"] for option in field["anyOf"] if "properties" in option), "")


def _named_by(query: str, fields: dict[str, Any]) -> list[str]:
    """Return the keys that match a query: by current or other trainers' names, otherwise by part of a name or text."""
    query = query.replace("-", "_").removeprefix("__")
    today = ".".join(current_path(tuple(query.split("."))))
    if today in fields:
        return [key for key in fields if key == today or key.startswith(f"{today}.")]
    same_name = [key for key in fields if key.rpartition(".")[2] == query]
    older = [key for name, key in SAME.items() if name.rpartition(".")[2] == query]
    like = [key for key in fields if query.lower() in key.rpartition(".")[2] or f".{query}." in f".{key}."]
    found = same_name or older or like or _described(query.lower(), fields)
    if not found:
        if re.fullmatch(CODE_PATTERN, query):
            raise UserError(f"{query}: not a setting; give it with its key, such as training.optimizer.type={query}")
        advice = INSTEAD.get(query) or suggestion(tuple(query.split(".")))
        raise UserError(f"{query}: not a setting; {advice}")
    return found


def _described(query: str, fields: dict[str, Any]) -> list[str]:
    return [key for key, field in fields.items() if len(query) > 3 and query in field["description"].lower()]


def _paragraph(key: str, field: dict[str, Any]) -> str:
    path = tuple(key.split("."))
    lines = [key, *_described_by_owners(path, field["description"].replace("\n", " "))]
    if is_section(path):
        lines[0] += "   (a section)"
        return "\n".join(lines) + "\n"
    default = f"Default: {json.dumps(field['default'])}." if "default" in field else "Required."
    lines += indented(f"Allowed: {allowed_values(path)}. {default}")
    owners = _owners(path)
    lines += indented(f"Of: {', '.join(owners)}.") if owners else []
    older = sorted(name for name, today in SAME.items() if today == key)
    lines += indented(f"Also read from: {', '.join(older)}.") if older else []
    return "\n".join(lines) + "\n"


def _described_by_owners(path: tuple[str, ...], text: str) -> list[str]:
    """Return the lines that describe a key: one per meaning if the key differs between components, otherwise `text`."""
    room = room_of(path)
    texts = {} if room is None or path[-1] == room.name_field else room.texts(path[-1])
    if len(texts) < 2:
        return indented(text)
    return [line for text, names in texts.items() for line in indented(f"{', '.join(names)}: {' '.join(text.split())}")]


def _owners(path: tuple[str, ...]) -> list[str]:
    """Return the components that have an option; empty if all components of its room have it."""
    room = room_of(path)
    owners = [] if room is None else room.owners(path[-1])
    return [] if room is None or len(owners) == len(room.table) else owners or ["package.module:name"]


def indented(text: str) -> list[str]:
    """Return a text as indented, wrapped lines; an empty list for an empty text."""
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def explain_code(component: CodeComponent) -> str:
    """Return a paragraph on named code, and one on each of its options. Imports the code.

    Raises ConfigError if the code cannot be used, but not for missing options: the user is looking these up.
    """
    if not component.missing_options():
        component.check()
    typed = component.code.typed_class(component.kind)
    options = _of_arguments(component) if typed is None else _of_fields(component, typed)
    text = inspect.cleandoc(component.code.load().__doc__ or "")  # inspect.getdoc would return that of a base class
    first = indented(one_line(" ".join(text.partition("\n\n")[0].split())))
    paragraphs = [[f"{component.setting}={component.name}", *first], *options]
    return "\n".join("\n".join([*lines, ""]) for lines in paragraphs)


def _of_arguments(component: CodeComponent) -> Iterator[list[str]]:
    for name, argument in (component.arguments() or {}).items():
        has_default = argument.default is not argument.empty
        default = f"Default: {argument.default!r}." if has_default else "Required."
        yield [_key(component, name), f"  {default}{_here(component, name)}"]


def _of_fields(component: CodeComponent, cls: type[Any]) -> Iterator[list[str]]:
    for name, field in cls.model_json_schema()["properties"].items():
        if name not in component.kind.model_fields and name != component.name_field:
            texts = [f"  {field['description']}"] if "description" in field else []
            allowed = ", or ".join(map(describe_values, field.get("anyOf", [field])))
            default = f"Default: {json.dumps(field['default'])}." if "default" in field else "Required."
            yield [_key(component, name), *texts, f"  Allowed: {allowed}. {default}{_here(component, name)}"]


def _key(component: CodeComponent, option: str) -> str:
    return f"{component.options_key}.{option}"


def _here(component: CodeComponent, option: str) -> str:
    return f" Here: {show_value(component.options[option])}." if option in component.options else ""
