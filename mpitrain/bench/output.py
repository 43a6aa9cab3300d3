"""Output of results: tables as text, and JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitrain.durable_files import IMAGE_MARK, check_output, write_durably
from mpitrain.errors import OutputError, writing
from mpitrain.text_table import aligned


def render_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a title; the first column is left-aligned, the others are right-aligned."""
    head, *lines = aligned([columns, *rows], num_left=1, gap="   ")
    rule = "─" * max(map(len, (head, *lines)))
    return "\n".join([title, "", *(f" {line}" for line in (head, rule, *lines))]) + "\n"


def check_writable(path: Path | None, flag: str, overwrite: bool) -> None:
    """Raise OutputError if `path` cannot be written; called before a long measurement starts."""
    if path is None:
        return
    if path.is_dir():
        raise OutputError(f"{flag} {path}: is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{flag} {path}: no folder {path.absolute().parent}; create it, or name another file")
    with writing(f"{flag} {path}", "name another file"):
        check_output(path, rf'{IMAGE_MARK}|"benchmark": "|"command": "bench ', overwrite=overwrite)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` as JSON, atomically. Raises OutputError."""
    write_bytes(path, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises OutputError."""
    with writing(path, "choose another file"):
        write_durably(path, content)


def format_bytes(num_bytes: int) -> str:
    """Return a size such as 64 KiB or 16 MiB if it is a whole number of that unit, otherwise in B."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size and num_bytes % size == 0:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"
