"""Folders in which compiled code is kept, and checks that no other user can write to them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: $MPITRAIN_CACHE, else $XDG_CACHE_HOME/mpitrain, else ~/.cache/mpitrain."""
    chosen = os.environ.get("MPITRAIN_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mpitrain"


def private_folder() -> Path:
    """Create or reuse a folder in the temporary directory that only this user can write to. Raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"mpitrain-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Another user may have created a folder or a link of this name before.
    is_own = stat.S_ISDIR(folder.lstat().st_mode) and reason_not_trusted(folder.lstat()) is None
    return folder if is_own else Path(tempfile.mkdtemp(prefix="mpitrain-"))


def code_folder() -> Path:
    """Return the folder for code that is built and then run: the cache, or a private folder if the cache is not safe.

    Raises OSError if neither can be created.
    """
    chosen = cache_folder()
    return chosen if reason_not_used(chosen) is None else private_folder()


def reason_not_used(cache: Path) -> str | None:
    """Return why a folder must not be used for code, or None if only this user or root can write to it.

    The folder is created if needed.
    """
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        return reason_not_trusted(cache.stat())
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def is_trusted_program(path: Path) -> bool:
    """Return whether the program exists and only this user or root can write to it and to its folder."""
    try:
        return all(reason_not_trusted(one.lstat()) is None for one in (path.parent, path))
    except OSError:
        return False


def reason_not_trusted(status: os.stat_result) -> str | None:
    """Return why a file or folder of this status must not be trusted; None if only this user or root can write to it.

    Only ownership and permission bits are checked: rights in access control lists were granted by the owner.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
