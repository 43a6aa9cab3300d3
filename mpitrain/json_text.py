"""Reading of JSON from untrusted sources: invalid text, deep nesting and oversized files raise ValueError."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGEST_BYTES = 1 << 28


def parse_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON text. Raises ValueError, also if it is nested too deeply.

    `parse_constant` is called for NaN and the infinities, as by `json.loads`.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, largest_bytes: int = LARGEST_BYTES) -> Any:
    """Return the value of a JSON file. Raises OSError as `read_regular_file`, ValueError as `parse_json`."""
    return parse_json(read_regular_file(path, largest_bytes))


def read_regular_file(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises OSError, also if `path` is a pipe or a device, and ValueError if the file is larger than `largest_bytes`.
    A pipe is opened without waiting for a writer.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "not a regular file", str(path))
        if status.st_size > largest_bytes:
            raise ValueError(f"larger than {largest_bytes} bytes")
        return file.read(largest_bytes)
