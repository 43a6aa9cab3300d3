"""Values and places as short text for messages: one line, nothing unprintable."""

from __future__ import annotations

LONGEST_VALUE_CHARACTERS = 60


def show_value(value: object) -> str:
    """Return a value as YAML would write it, on one line and cut to a readable length."""
    return shorten(_show(value))


def shorten(text: str) -> str:
    """Return the text on one line, cut where it is long."""
    text = one_line(text[: 2 * LONGEST_VALUE_CHARACTERS])
    return text if len(text) <= LONGEST_VALUE_CHARACTERS else text[: LONGEST_VALUE_CHARACTERS - 3] + "..."


def one_line(text: str) -> str:
    """Return the text with every character that is not printable written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _show(value: object) -> str:
    """Look only at the head of a value: aliases can make it far larger than its file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        head = ", ".join("a list" if isinstance(item, list) else _show(item) for item in value[:4])
        return f"[{head}, ... {len(value)} in all]" if len(value) > 4 else f"[{head}]"
    return value if isinstance(value, str) else str(value)
