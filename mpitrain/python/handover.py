"""Data in memory as files that every process of the node can read: in memory too, where there is room.

The files lie in /dev/shm, which the operating system keeps in memory, so that nothing is copied to a disk and the ranks
share one copy. Where half of its free space would not hold the data, they lie beside the run folder instead. They are
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
from mpitrain.durable_files import PASSING_FOLDER
from mpitrain.errors import UserError
from mpitrain.python.left_behind import LeftBehind
from mpitrain.python.variables import size_of, variables_of

if TYPE_CHECKING:
    from mpitrain.data import Asked

_SHARED = Path("/dev/shm")  # noqa: S108  # a private folder is made in it
_MOST_SHARE = 0.5


@contextmanager
def handed_over(
    data: Any, beside: Path, left: LeftBehind, asked: Asked, key: str = "data.data_path"
) -> Iterator[list[str] | None]:
    """Yield the files that hold `data` during the block; None of None. Raises UserError for a kind that is unknown.

    Of a Dataset they hold what is `asked` for. `left` removes them where this process is killed. Messages call data
    `data`, and those of another setting by its `key`.
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
                size = f"its copy for the ranks takes {size_of(variables)} bytes"
                raise UserError(f"{called}: {error.strerror}: {size}; free some, or give less") from error

        with filled_folder(size_of(variables), beside, left, fill) as folder:
            name = str(folder / VARIABLES_FILE)
            try:
                yield [name]
            except UserError as error:  # the user has never seen that file
                raise type(error)(*(line.replace(name, called) for line in error.args)) from error


@contextmanager
def filled_folder(
    num_bytes: int,
    beside: Path,
    left: LeftBehind,
    fill: Callable[[Path], None] = lambda folder: None,
    is_read_everywhere: bool = False,
) -> Iterator[Path]:
    """Yield a folder for so many bytes that `fill` has filled, in memory where there is room; remove it afterwards.

    Where this process is one of several ranks, one on each node fills it. With `is_read_everywhere` ranks on all nodes
    read what one rank writes there. Collective then.
    """
    if is_rank():
        from mpitrain.python.together import shared_folder

        with shared_folder(lambda: place_for(num_bytes, beside), beside, left, fill, is_read_everywhere) as folder:
            yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix=PASSING_FOLDER, dir=place_for(num_bytes, beside)))
    left.folder(folder)
    try:
        fill(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_rank() -> bool:
    """Tell whether a launcher has started this process as one of several ranks."""
    return read_place(os.environ).world_size > 1


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def place_for(num_bytes: int, beside: Path) -> Path:
    """Return a folder for so many bytes: in memory where half of its free space holds them, else beside the run."""
    can_share = _SHARED.is_dir() and os.access(_SHARED, os.W_OK)
    has_room = can_share and num_bytes <= _MOST_SHARE * shutil.disk_usage(_SHARED).free
    return _SHARED if has_room else beside.resolve().parent
