"""Base class of the formats of data files."""

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
    """First bytes by which a file of this format is recognised."""
    marks: ClassVar[tuple[str, ...]] = ()
    """If a folder is one data set: names of files, at least one of which it contains."""
    opener: ClassVar[str] = ""
    """Class or function that opens a file, given its path, as package.module:name; only `build` imports it."""

    type: str
    """Name of the format."""

    def build(self, path: Path) -> FieldFile:
        """Return the open file. Raises DataError if it does not have this format, MissingDependencyError or OSError."""
        if not self.opener:
            raise NotImplementedError
        found: FieldFile = object_at(self.opener)(path)
        return found

    @classmethod
    def load_libraries(cls) -> None:
        """Import the libraries that `build` needs, so that a rank can do so while it waits for another rank."""


def is_data_folder(path: Path, formats: Iterable[type[Format]]) -> bool:
    """Tell whether a folder is one data set of one of the formats."""
    return path.is_dir() and any((path / mark).is_file() for one in formats for mark in one.marks)
