"""The files of a source as they were when it was opened, and their handles: opened late, never used across a fork."""

from __future__ import annotations

import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpitrain.data.files.open import open_field_file
from mpitrain.data.files.protocol import FieldFile, VariableInfo
from mpitrain.data.selection.axes import Axes
from mpitrain.data.selection.chunks import blocks_touched
from mpitrain.errors import DataError

# How often each block of each variable was read: (path, variable, numbers of the block along each axis).
ReadCounter = Counter[tuple[str, str, tuple[int, ...]]]
MOST_OPEN_FILES = 16


@dataclass(frozen=True)
class VariableAccess:
    """A variable of one file, and which of its axes is what."""

    info: VariableInfo
    axes: Axes

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, J, I), 1 where the variable lacks the axis."""
        return self.axes.arranged_shape(self.info.shape)


@dataclass(frozen=True)
class SourceFile:
    """One file: its variables by the name that the settings use, and what tells whether it has changed since.

    `first_time` is the number of its first time level (of its first sample, for a table) among all files.
    """

    path: Path
    size_bytes: int
    mtime_ns: int
    num_times: int
    first_time: int
    variables: Mapping[str, VariableAccess] = field(default_factory=dict)

    def check_unchanged(self) -> None:
        """Raise DataError where the file is gone or another than the one that was opened first."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be read any more ({error.strerror}); restore it and use --resume"
            ) from error
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataError(
                f"{self.path}: changed since the run began (it had {self.size_bytes} bytes, now {status.st_size}); "
                "results would mix two data sets: start again on files that nobody writes to"
            )


class OpenFiles:
    """The handles of this process and thread, the last used ones. Pickled and forked copies start without any.

    Threads do not share handles: one must not close what another reads, such as a thread that reads ahead.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        self._of_thread = threading.local()

    def get(self, path: Path) -> FieldFile:
        """Return the open file, opening it if need be. Raises DataError."""
        handles = self._own()
        if path not in handles:
            handles[path] = open_field_file(path)
        handles.move_to_end(path)
        while len(handles) > MOST_OPEN_FILES:
            handles.popitem(last=False)[1].close()
        return handles[path]

    def close(self) -> None:
        """Close what this thread has opened."""
        handles = self._own()
        while handles:
            handles.popitem()[1].close()

    def _own(self) -> OrderedDict[Path, FieldFile]:
        of_thread, process = self._of_thread, os.getpid()
        if getattr(of_thread, "process", None) != process:
            # A parent's handles are kept, but never touched: closing one here would disturb the parent.
            of_thread.inherited = getattr(of_thread, "handles", None)
            of_thread.process, of_thread.handles = process, OrderedDict()
        handles: OrderedDict[Path, FieldFile] = of_thread.handles
        return handles

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()


def read_part(
    file: FieldFile, access: VariableAccess, time: slice, rows: slice, reads: ReadCounter | None = None
) -> npt.NDArray[Any]:
    """Return some time levels and rows of a variable as stored, arranged (T, J, I); counts each block in `reads`."""
    slices = access.axes.slices(access.info.shape, time, rows)
    if reads is not None:
        path, name = str(file.path), access.info.name
        reads.update((path, name, block) for block in blocks_touched(access.info, access.axes, slices))
    return access.axes.arrange(file.read_stored(access.info.name, slices))
