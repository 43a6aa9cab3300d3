"""Passing of data in memory to the ranks: as temporary files, in shared memory if there is room.

The files are written to /dev/shm, which is in memory: nothing is copied to a disk, and the ranks of a node share one
copy. If the data need more than half of its free space, the files are written next to the run folder instead. They are
removed after the command.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.cluster import read_place
from mpitrain.durable_files import TEMPORARY_PREFIX
from mpitrain.errors import UserError
from mpitrain.python.left_behind import LeftBehind
from mpitrain.python.variables import size_of, variables_of

if TYPE_CHECKING:
    from mpitrain.data import Asked

_SHARED = Path("/dev/shm")  # noqa: S108  # a private folder is created in it
_MOST_SHARE = 0.5


@contextmanager
def handed_over(
    data: Any, beside: Path, left: LeftBehind, asked: Asked, key: str = "data.data_path"
) -> Iterator[list[str] | None]:
    """Yield the files that contain `data` during the block, or None if `data` is None.

    For a Dataset they contain the coordinates and the variables in `asked`. `left` removes the files if this process is
    killed. Messages call the data `data`, or `key` if it is the data of another setting. Raises UserError for an
    unknown kind of data.
    """
    called = "data" if key == "data.data_path" else key
    if data is None or _is_path(data):
        yield None if data is None else [os.fspath(data)]
    elif isinstance(data, Sequence) and all(map(_is_path, data)) and data:
        yield [os.fspath(one) for one in data]
    else:
        from mpitrain.data import VARIABLES_FILE, write_variables

        try:
            variables = variables_of(data, asked)
        except UserError as error:
            raise type(error)(str(error).replace("data: ", f"{called}: ", 1)) from error

        def fill(folder: Path) -> None:
            try:
                write_variables(folder, variables)
            except OSError as error:
                size = f"the copy for the ranks needs {size_of(variables)} bytes"
                raise UserError(f"{called}: {error.strerror}: {size}; free space, or pass less data") from error

        with filled_folder(size_of(variables), beside, left, fill) as folder:
            name = str(folder / VARIABLES_FILE)
            try:
                yield [name]
            except UserError as error:  # the user does not know this file: name the argument instead
                raise type(error)(*(line.replace(name, called) for line in error.args)) from error


@contextmanager
def filled_folder(
    num_bytes: int,
    beside: Path,
    left: LeftBehind,
    fill: Callable[[Path], None] = lambda folder: None,
    is_read_everywhere: bool = False,
) -> Iterator[Path]:
    """Yield a temporary folder filled by `fill`, in memory if there is room for `num_bytes`; remove it afterwards.

    If this process is one of several ranks, this is collective: one rank of each node fills a folder, or, with
    `is_read_everywhere`, one rank fills a folder that all nodes can read. Without room in memory the folder is created
    next to the run folder `beside`.
    """
    if is_rank():
        from mpitrain.python.together import shared_folder

        with shared_folder(lambda: place_for(num_bytes, beside), beside, left, fill, is_read_everywhere) as folder:
            yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=place_for(num_bytes, beside)))
    left.folder(folder)
    try:
        fill(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_rank() -> bool:
    """Return whether a launcher has started this process as one of several ranks."""
    return read_place(os.environ).world_size > 1


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def place_for(num_bytes: int, beside: Path) -> Path:
    """Return /dev/shm if half of its free space is at least `num_bytes`, otherwise the parent folder of the run."""
    can_share = _SHARED.is_dir() and os.access(_SHARED, os.W_OK)
    has_room = can_share and num_bytes <= _MOST_SHARE * shutil.disk_usage(_SHARED).free
    return _SHARED if has_room else beside.resolve().parent
