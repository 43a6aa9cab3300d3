"""Files that are whole or not there: temporary in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PASSING_FOLDER = "mpitrain-"
"""How the names of folders begin that are removed after the command that they were made for."""
HANDED_OVER = (
    "the run's data were given in memory by a Python program and are not kept; give them again from Python, or a file "
    "by --data"
)


def is_in_passing_folder(path: Path) -> bool:
    """Tell whether a file holds data in memory of a Python program, and is removed after the command that reads it."""
    return path.parent.name.startswith(PASSING_FOLDER) and path.is_absolute()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace `path` by `content` so that a reader or a kill finds the old content or the new one.

    After a power cut it may be either, or damaged: for what is verified when it is read, and can be made again. Raises
    OSError; then nothing is left behind.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Replace `path` by `content` so that a reader, a kill or a power cut finds the old content or the new one.

    Raises OSError; then nothing is left behind.
    """
    with replacing(path) as temporary:
        write_and_sync(temporary, content)
    sync_folder(path.parent)


def temporary_name(path: Path) -> Path:
    """Return where to write what takes the place of `path` later: a name that nobody can guess."""
    # The same folder: a rename never crosses file systems. The random part: two writers never share a temporary, and
    # nobody can have put a link in its place.
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what takes the place of `path` at the end of the block; an error leaves all as it was."""
    temporary = temporary_name(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_and_sync(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` and wait until the disk has it. Raises OSError."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the disk has the content of a file that was written by others. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names: a rename lives there, not in the file. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
