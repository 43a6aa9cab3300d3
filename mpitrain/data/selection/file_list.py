"""From `data.data_path` to the files that it names."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from mpitrain.errors import DataError

_PATTERN = re.compile(r"[*?\[]")


def expand_paths(data_path: str | Sequence[str] | None) -> tuple[Path, ...]:
    """Return the files of a path, a pattern such as "year_*.nc", or a list of these, each file once.

    The matches of a pattern are in natural order (year_2 before year_10); the entries of a list keep theirs. Raises
    DataError for a path that is not there and for a pattern that matches nothing.
    """
    entries = [data_path] if isinstance(data_path, str) else list(data_path or ())
    if not entries:
        raise DataError("data.data_path is not set; name a file, a pattern such as 'year_*.nc', or a list of these")
    files = dict.fromkeys(path for entry in entries for path in _matches(entry))
    return tuple(files)


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts names as people do: digits by their value."""
    words = re.split(r"(\d+)", str(path))
    return tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words if word)


def _matches(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if path.is_file():  # also where its name holds a character of patterns
        return [path]
    if not _PATTERN.search(entry):
        problem = "a folder; add a pattern such as '*.nc'" if path.is_dir() else "no such file"
        raise DataError(f"{entry}: {problem}; set data.data_path to an existing file, a pattern or a list of these")
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=natural_key)
    files = [file for file in found if file.is_file()]
    if not files:
        raise DataError(f"{entry}: no file matches this pattern; set data.data_path to one that does")
    return files
