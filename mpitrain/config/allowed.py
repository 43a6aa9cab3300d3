"""What a key allows, in words, and which key an unknown one was meant to be; both read from the models' schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from mpitrain.config.settings import KeyPath

Schema = dict[str, Any]

# Other trainers' short names that no measure of likeness finds.
_SYNONYMS = {"lr": "training.optimizer.learning_rate", "max_epochs": "training.epochs", "batch": "training.batch_size"}
_PLAIN = {"null": "null", "boolean": "true or false", "array": "a list of names", "object": "a mapping"}


class KeySchema:
    """The keys of a model and what each allows."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: Schema = schema.get("$defs", {})
        self._keys: dict[KeyPath, Schema] = dict(self._walk(schema, ()))

    def known(self, path: KeyPath) -> bool:
        """Whether there is such a key or section."""
        return path in self._keys

    def is_section(self, path: KeyPath) -> bool:
        """Whether the key holds further keys."""
        return any(key[:-1] == path for key in self._keys)

    def siblings(self, section: KeyPath) -> list[str]:
        """Return the names of the keys in a section; () is the top."""
        return [key[-1] for key in self._keys if key[:-1] == section]

    def allowed(self, path: KeyPath) -> str:
        """Return what a key allows, such as `a whole number, at least 1, or null`."""
        schema = self._keys[path]
        return _describe(schema, self._definitions)

    def suggestion(self, path: KeyPath) -> str:
        """Return the advice for an unknown key: the nearest name in its section, else elsewhere, else all of them."""
        name, siblings = path[-1], self.siblings(path[:-1])
        elsewhere = [key for key in self._keys if key[-1] == name]
        if self.known(tuple(name.split("."))):
            return f"write '{name.rpartition('.')[2]}' below '{name.rpartition('.')[0].replace('.', ': ')}:'"
        if name in _SYNONYMS:
            return f"did you mean '{_SYNONYMS[name]}'?"
        if near := _nearest(name, siblings):
            return f"did you mean '{near}'?"
        if elsewhere:
            return f"did you mean '{'.'.join(elsewhere[0])}'?"
        if near := _nearest(name, [".".join(key) for key in self._keys] + [key[-1] for key in self._keys]):
            return f"did you mean '{next('.'.join(key) for key in self._keys if near in (key[-1], '.'.join(key)))}'?"
        return f"allowed: {', '.join(siblings)}"

    def _walk(self, schema: Schema, above: KeyPath) -> Iterator[tuple[KeyPath, Schema]]:
        for name, field in schema.get("properties", {}).items():
            yield (*above, name), field
            for option in _options(field, self._definitions):
                yield from self._walk(option, (*above, name))


def _nearest(name: str, names: list[str]) -> str | None:
    close = difflib.get_close_matches(name.lower().replace(" ", "_").replace("-", "_"), names, n=1)
    return close[0] if close else next((known for known in names if len(name) > 3 and name in known), None)


def _options(schema: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    """Return the alternatives of a schema with references followed."""
    if "$ref" in schema:
        return [definitions[schema["$ref"].rpartition("/")[2]]]
    return [found for option in schema.get("anyOf", [schema]) for found in _follow(option, definitions)]


def _follow(option: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    return _options(option, definitions) if "$ref" in option or "anyOf" in option else [option]


def _describe(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    parts = [_describe_one(option) for option in _options(schema, definitions)]
    return ", or ".join(parts)


def _describe_one(schema: Schema) -> str:
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _bounds(schema)
    if kind == "object":
        return f"a mapping of keys such as {next(iter(schema['properties']))}"
    if kind == "array" and schema.get("items", {}).get("type") == "number":
        return f"a list of {schema['minItems']} numbers"
    return "text, not empty" if kind == "string" else _PLAIN[kind]


def _bounds(schema: Schema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    # The largest 64-bit number bounds every whole number: worth no words.
    bounds = [f"{word} {schema[key]:g}" for key, word in words.items() if key in schema and schema[key] < 2**62]
    return "".join(f", {bound}" if index == 0 else f" and {bound}" for index, bound in enumerate(bounds))
