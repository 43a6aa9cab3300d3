"""Files that are whole or not there: temporary in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PASSING_FOLDER = "mpitrain-"
"""How the names of folders begin that are removed after the command that they were made for."""
HANDED_OVER = (
    "these data of the run were given in memory by a Python program and are not kept; give them again from Python, or "
    "a file by --data or data.validation_path"
)

PICTURE = r"Software\0mpitrain"
"""What stands in every picture that this program writes, as a pattern for `check_output`."""
_MARKED_BYTES = 65_536  # a mark stands that near to the beginning or the end of a file
_OF_A_RUN = ("checkpoints", "run_record.json", "model.safetensors", "members")
_FOLDERS_OF_A_RUN = ("checkpoints", "logs", "tracking", "members")
_MODELS_OF_A_RUN = ("model.pt", "normalization.model.pt")


def check_output(
    path: Path, mark: str | None, inputs: Iterable[str | os.PathLike[str]] = (), overwrite: bool = False
) -> None:  # fmt: skip
    """Raise OSError where a command must not write `path`; for each file that a user names.

    Never replaced are an input of the command, by device and inode, what is no regular file, and a file of a run that
    is none of the command's own; without `overwrite` neither is any other. A file is the command's own if it holds
    `mark`, a pattern of what the command writes into all of its files; None: whatever is there is its own.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return  # there is nothing to lose; whoever writes says why it cannot
    _check_regular(path)
    for one in filter(os.path.exists, inputs):
        if os.path.samestat(os.stat(one), found) or os.path.realpath(path).startswith(f"{os.path.realpath(one)}/"):
            raise OSError(errno.EEXIST, f"{path.name} is an input of this command")
    is_own = mark is None or _holds(path, mark)
    run = None if mark is None or (is_own and path.name not in _MODELS_OF_A_RUN) else _run_of(path)
    if run is not None:
        raise OSError(errno.EEXIST, f"{path.name} is a file of the run in {run}")
    if not (is_own or overwrite):
        raise OSError(errno.EEXIST, f"{path.name} has no mark of this command's files; --overwrite replaces it")


def check_ending(path: Path, endings: Iterable[str]) -> None:
    """Raise OSError where a file that a user names has none of these endings; "" is a name without one.

    What a file is follows its ending, in every command and from Python.
    """
    if path.suffix not in (known := dict.fromkeys(endings)):
        names = ", ".join(ending or "none, for a folder (no dot in its name)" for ending in known)
        raise OSError(errno.EINVAL, f"the ending says what is written: {names}")


def _check_regular(path: Path) -> None:
    """Raise OSError where `path` leads to a folder, a device or a pipe, in whose place a rename would put a file."""
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
    """Return the folder of the run that a file is of, if it is in one or in one of a run's own folders."""
    real = Path(os.path.realpath(path))
    for inside, folder in zip((real, *real.parents), real.parents, strict=False):
        is_run = (folder / "config.yaml").exists() and any((folder / name).exists() for name in _OF_A_RUN)
        if is_run and (inside == real or inside.name in _FOLDERS_OF_A_RUN):
            return folder
    return None


def is_gone(path: Path) -> bool:
    """Tell whether a path is that of data in memory of a call that is over."""
    return is_in_passing_folder(path) and not path.exists()


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


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`. Raises OSError, also where a folder, a device or a pipe is there."""
    _check_regular(path)
    temporary.replace(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write what takes the place of `path` at the end of the block; an error leaves all as it was."""
    temporary = temporary_name(path)
    try:
        yield temporary
        put_in_place(temporary, path)
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
