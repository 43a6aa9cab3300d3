"""`mpitrain config explain KEY`: what a setting is, what it may be, what it is unless set, and its older names."""

from __future__ import annotations

import json
import textwrap
from functools import cache
from typing import Any

from mpitrain.config.messages import allowed_values, is_section, known_keys, suggestion
from mpitrain.config.older.spellings import current_path
from mpitrain.config.older.synonyms import INSTEAD, SAME
from mpitrain.errors import UserError

_WIDTH = 100


def explain_settings(words: list[str]) -> str:
    """Return a paragraph for each setting that the words name: keys, sections, parts or older names; none: for all.

    Raises UserError for a word that is none of these.
    """
    fields = _all_fields()
    named = [key for word in words for key in _named_by(word, fields)] if words else list(fields)
    return "\n".join(_paragraph(key, fields[key]) for key in dict.fromkeys(named))


@cache
def _all_fields() -> dict[str, dict[str, Any]]:
    """Return each dotted key with its JSON schema, sections before what is in them."""
    return {".".join(path): {"description": _of_class(field), **field} for path, field in known_keys().items()}


def _of_class(field: dict[str, Any]) -> str:
    """Return the words of a section's class: one that is always there has no others."""
    return next((option["description"] for option in field["anyOf"] if "properties" in option), "")


def _named_by(word: str, fields: dict[str, Any]) -> list[str]:
    """Return the keys that a word names: as written today or by another trainer, else those that hold it."""
    word = word.replace("-", "_").removeprefix("__")
    today = ".".join(current_path(tuple(word.split("."))))
    if today in fields:
        return [key for key in fields if key == today or key.startswith(f"{today}.")]
    same_name = [key for key in fields if key.rpartition(".")[2] == word]
    older = [key for name, key in SAME.items() if name.rpartition(".")[2] == word]
    like = [key for key in fields if word.lower() in key.rpartition(".")[2] or f".{word}." in f".{key}."]
    found = same_name or older or like or _described(word.lower(), fields)
    if not found:
        advice = INSTEAD.get(word) or suggestion(tuple(word.split(".")))
        raise UserError(f"{word}: no setting; {advice}")
    return found


def _described(word: str, fields: dict[str, Any]) -> list[str]:
    return [key for key, field in fields.items() if len(word) > 3 and word in field["description"].lower()]


def _paragraph(key: str, field: dict[str, Any]) -> str:
    lines = [key, *_indented(field["description"].replace("\n", " "))]
    path = tuple(key.split("."))
    if is_section(path):
        lines[0] += "   (a section)"
        return "\n".join(lines) + "\n"
    unless_set = f"Unless set: {json.dumps(field['default'])}." if "default" in field else "It must be given."
    lines += _indented(f"Takes: {allowed_values(path)}. {unless_set}")
    older = sorted(name for name, today in SAME.items() if today == key)
    lines += _indented(f"Read too: {', '.join(older)}.") if older else []
    return "\n".join(lines) + "\n"


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
