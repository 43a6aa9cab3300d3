"""Results as a table for people, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitrain.durable_files import PICTURE, check_output, write_durably
from mpitrain.errors import OutputError, writing
from mpitrain.text_table import aligned


def render_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a titled table; the first column is words, flush left, the others flush right."""
    head, *lines = aligned([columns, *rows], num_left=1, gap="   ")
    rule = "─" * max(map(len, (head, *lines)))
    return "\n".join([title, "", *(f" {line}" for line in (head, rule, *lines))]) + "\n"


def check_writable(path: Path | None, flag: str, overwrite: bool) -> None:
    """Raise OutputError if `path` cannot be written, before an hour is spent on measuring."""
    if path is None:
        return
    if path.is_dir():
        raise OutputError(f"{flag} {path}: is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{flag} {path}: there is no folder {path.absolute().parent}; make it, or name another file")
    with writing(f"{flag} {path}", "name another file"):
        check_output(path, rf'{PICTURE}|"benchmark": "|"command": "bench ', overwrite=overwrite)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write `record` whole or not at all. Raises OutputError."""
    write_bytes(path, (json.dumps(record, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises OutputError."""
    with writing(path, "choose another file"):
        write_durably(path, content)


def format_bytes(num_bytes: int) -> str:
    """Return 4, 64 KiB, 16 MiB: exact where it divides, else the plain number."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size and num_bytes % size == 0:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes} B"
