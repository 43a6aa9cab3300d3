"""What a format of data files is to the rest of the package."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import TypedComponent, object_at

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Format(TypedComponent):
    """A format of data files."""

    first_bytes: ClassVar[tuple[bytes, ...]] = ()
    """What such a file may begin with."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Where a folder is one data set: files of which it holds one."""
    opener: ClassVar[str] = ""
    """What opens a file, given its path: a class or function at package.module:name, imported by `build` alone."""

    type: str
    """Which format."""

    def build(self, path: Path) -> FieldFile:
        """Return the open file. Raises DataError where it is none of this format, MissingDependencyError, OSError."""
        if not self.opener:
            raise NotImplementedError
        found: FieldFile = object_at(self.opener)(path)
        return found

    @classmethod
    def load_libraries(cls) -> None:
        """Load what `build` will load, so that a rank that waits for another has it when its turn comes."""


def is_data_folder(path: Path, formats: Iterable[type[Format]]) -> bool:
    """Tell whether a folder is one data set of one of the formats."""
    return path.is_dir() and any((path / mark).is_file() for one in formats for mark in one.marks)
