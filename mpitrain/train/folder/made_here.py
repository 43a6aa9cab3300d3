"""The files and folders that this process has made in a shared folder: only these are removed again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mpitrain.durable_files import write_durably

_Version = tuple[int, int, int, int]


class MadeHere:
    """Remembers which folders and files this process made, and removes these, and nothing else, on request."""

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._files: dict[Path, tuple[_Version, bytes | None]] = {}

    def make_folder(self, path: Path) -> None:
        """Make a folder and its parents where they are missing. Raises OSError."""
        missing = [one for one in (path, *path.parents) if not one.exists()]
        for one in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process has made it in the meantime
                one.mkdir()
                self._folders.append(one)

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Let `write` make or replace the file at `path`. Raises what it raises."""
        before = path.read_bytes() if path.is_file() else None
        write(path)
        self._files[path] = _version_of(path), before

    def take_back(self) -> None:
        """Undo it: remove each file, or put back its content from before, and each folder that is empty then.

        A file that another process has written since stays as it is, and so do the folders that hold anything.
        """
        for path, (version, before) in self._files.items():
            with contextlib.suppress(OSError):
                if _version_of(path) == version:
                    path.unlink() if before is None else write_durably(path, before)
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._files, self._folders = {}, []


def _version_of(path: Path) -> _Version:
    status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
