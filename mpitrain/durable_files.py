"""Atomic and durable writing of files: temporary file in the same folder, fsync, rename, fsync of the folder.

Also the checks that a command does not overwrite its inputs, the files of a run or the user's other files.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = "mpitrain-"
"""Prefix of the names of temporary folders, which are removed after the command that uses them."""
NOT_STORED = "these data of the run were passed in memory by a Python program and are not stored"

IMAGE_MARK = r"Software\0mpitrain"
"""Pattern for `check_output` that matches every image file written by this program."""
_MARKED_BYTES = 65_536  # a mark lies within this distance of the beginning or the end of a file
_OF_A_RUN = ("checkpoints", "run_record.json", "model.safetensors", "members")
_FOLDERS_OF_A_RUN = ("checkpoints", "logs", "tracking", "members")
_MODELS_OF_A_RUN = ("model.pt", "normalization.model.pt")


def check_output(
    path: Path, mark: str | None, inputs: Iterable[str | os.PathLike[str]] = (), overwrite: bool = False
) -> None:  # fmt: skip
    """Raise OSError if a command must not write to `path`, an output file that the user has named.

    The following are never replaced: an input of the command (same device and inode), anything but a regular file, and
    a file of a run that this command has not written. Any other file that the command has not written is replaced only
    with `overwrite`. The command has written a file if it matches `mark`, a pattern that the command writes into all
    its files; with None every existing file counts as written by it.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return  # nothing to lose; if the path cannot be written, the write itself raises
    _check_regular(path)
    for one in filter(os.path.exists, inputs):
        if os.path.samestat(os.stat(one), found) or os.path.realpath(path).startswith(f"{os.path.realpath(one)}/"):
            raise OSError(errno.EEXIST, f"{path.name} is an input of this command")
    is_own = mark is None or _holds(path, mark)
    run = None if mark is None or (is_own and path.name not in _MODELS_OF_A_RUN) else _run_of(path)
    if run is not None:
        raise OSError(errno.EEXIST, f"{path.name} is a file of the run in {run}")
    if not (is_own or overwrite):
        raise OSError(errno.EEXIST, f"{path.name} was not written by this command; --overwrite replaces it")


def check_ending(path: Path, endings: Iterable[str]) -> None:
    """Raise OSError unless the name of a file has one of these endings; "" stands for a name without an ending.

    The ending determines the format, in every command and from Python.
    """
    if path.suffix not in (known := dict.fromkeys(endings)):
        names = ", ".join(ending or "none, for a folder (no dot in its name)" for ending in known)
        raise OSError(errno.EINVAL, f"the ending determines the format: {names}")


def _check_regular(path: Path) -> None:
    """Raise OSError if `path` is a folder, a device or a pipe: a rename would replace it by a file."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, f"{path.name} is a folder, a device or a pipe")


def _holds(path: Path, mark: str) -> bool:
    try:
        with path.open("rb") as file:
            first = file.read(_MARKED_BYTES)
            file.seek(max(len(first), os.fstat(file.fileno()).st_size - _MARKED_BYTES))
            return re.search(mark.encode(), first + file.read()) is not None
    except PermissionError:
        return False


def _run_of(path: Path) -> Path | None:
    """Return the run folder that contains a file, directly or in a subfolder written by the run; otherwise None."""
    real = Path(os.path.realpath(path))
    for inside, folder in zip((real, *real.parents), real.parents, strict=False):
        is_run = (folder / "config.yaml").exists() and any((folder / name).exists() for name in _OF_A_RUN)
        if is_run and (inside == real or inside.name in _FOLDERS_OF_A_RUN):
            return folder
    return None


def is_gone(path: Path) -> bool:
    """Return whether a path is that of data passed in memory by a call from Python that has ended."""
    return is_in_temporary_folder(path) and not path.exists()


def is_in_temporary_folder(path: Path) -> bool:
    """Return whether a file holds data passed in memory from Python; it is removed after the command that reads it."""
    return path.parent.name.startswith(TEMPORARY_PREFIX) and path.is_absolute()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` atomically: a reader finds the old or the new content, also if this process is killed.

    After a power cut the file may hold either, or be damaged: use it for files that are verified when they are read and
    can be written again. Raises OSError, and then leaves no temporary file.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` atomically and durably: also after a power cut it holds the old or the new content.

    Raises OSError, and then leaves no temporary file.
    """
    with replacing(path) as temporary:
        write_and_sync(temporary, content)
    sync_folder(path.parent)


def temporary_name(path: Path) -> Path:
    """Return the path of a temporary file that will replace `path`; the name cannot be guessed."""
    # Same folder: the rename stays within one file system. Random part: two writers never share a temporary file, and
    # no other user can have put a link there.
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`. Raises OSError, also if `path` is a folder, a device or a pipe."""
    _check_regular(path)
    temporary.replace(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end of the block; after an error `path` is unchanged."""
    temporary = temporary_name(path)
    try:
        yield temporary
        put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_and_sync(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` and wait until it is on disk (fsync). Raises OSError."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the content of a file that another library has written is on disk (fsync). Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on disk: a rename changes the folder, not the file. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
