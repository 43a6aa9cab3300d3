"""Where things that are built once are kept."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what is built: $MPITRAIN_CACHE, else $XDG_CACHE_HOME/mpitrain, else ~/.cache/mpitrain."""
    chosen = os.environ.get("MPITRAIN_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mpitrain"


def private_folder() -> Path:
    """Return a folder of this user alone below the temporary one, made if need be. Raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"mpitrain-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Anybody may have made one of this name first, or a link.
    is_own = stat.S_ISDIR(folder.lstat().st_mode) and why_not_trusted(folder.lstat()) is None
    return folder if is_own else Path(tempfile.mkdtemp(prefix="mpitrain-"))


def code_folder() -> Path:
    """Return where what is built and then run is kept: the cache, or the private folder where others can write to it.

    Raises OSError where neither can be made.
    """
    chosen = cache_folder()
    return chosen if why_not_used(chosen) is None else private_folder()


def why_not_used(cache: Path) -> str | None:
    """Return why code is neither looked for nor stored in a folder; None where it can only be this user's or root's.

    The folder is made if need be.
    """
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        return why_not_trusted(cache.stat())
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def is_trusted_program(path: Path) -> bool:
    """Tell whether a program is there that, like its folder, only this user or root can have written."""
    try:
        return all(why_not_trusted(one.lstat()) is None for one in (path.parent, path))
    except OSError:
        return False


def why_not_trusted(status: os.stat_result) -> str | None:
    """Return why code in a file or folder of this status may be another user's; None where it is this user's or root's.

    Permission bits are all that is looked at: whoever has further rights by access lists was given them by the owner.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
