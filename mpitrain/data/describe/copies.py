"""Detection of files that are the same under another name: links, and copies with equal contents."""

from __future__ import annotations

import filecmp
import hashlib
from collections.abc import Sequence
from pathlib import Path

_PART_BYTES = 65536


def find_same_file(paths: Sequence[Path], others: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return the first of `others` that is one of `paths`, or a link or copy of it, and that path; None if none is.

    Only files with equal size and equal bytes at beginning, middle and end are read completely. A folder is equal only
    to itself. Raises OSError if a file cannot be read.
    """
    by_place = {_place_of(path): path for path in paths}
    sizes = {path.stat().st_size for path in others if path.is_file()}
    by_parts: dict[bytes, list[Path]] = {}
    for path in paths:
        if path.is_file() and path.stat().st_size in sizes:
            by_parts.setdefault(_parts_of(path), []).append(path)
    for other in others:
        same = by_place.get(_place_of(other))
        if same is None and by_parts and other.is_file():
            of_parts = by_parts.get(_parts_of(other), ())
            same = next((path for path in of_parts if filecmp.cmp(path, other, shallow=False)), None)
        if same is not None:
            return other, same
    return None


def _place_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _parts_of(path: Path) -> bytes:
    """Return a digest of a file's size, beginning, middle and end."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, size // 2, max(0, size - _PART_BYTES)):
            file.seek(start)
            digest.update(file.read(_PART_BYTES))
    return digest.digest()
