"""Tracking of the files and folders that this process creates in a shared folder, so that only these are removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mpitrain.durable_files import write_durably

_Version = tuple[int, int, int, int]


class MadeHere:
    """Keeps track of the folders and files that this process creates, and removes only these on request."""

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._files: dict[Path, tuple[_Version, bytes | None]] = {}

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents if they are missing. Raises OSError."""
        missing = [one for one in (path, *path.parents) if not one.exists()]
        for one in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process has created it in the meantime
                one.mkdir()
                self._folders.append(one)

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        """Call `write` to create or replace the file at `path`, and keep its former content. Raises as `write`."""
        before = path.read_bytes() if path.is_file() else None
        write(path)
        self._files[path] = _version_of(path), before

    def take_back(self) -> None:
        """Remove each file, or restore its former content, and then remove each folder that is empty.

        Files that another process has written since, and folders that are not empty, are kept.
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
