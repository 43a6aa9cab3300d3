"""Base class of the formats of data files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import TypedComponent, object_at

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class Format(TypedComponent):
    """A format of data files; base class of a user's own readers with typed options.

    A user's own subclass, named in `data.reader`, reads all files of a run. Its fields are its options, its field
    `type` contains its name, and it overrides `build`; `first_bytes` and `marks` have no effect on it.
    """

    first_bytes: ClassVar[tuple[bytes, ...]] = ()
    """First bytes by which a file of this format is recognised."""
    marks: ClassVar[tuple[str, ...]] = ()
    """If a folder is one data set: names of files, at least one of which it contains."""
    opener: ClassVar[str] = ""
    """Class or function that opens a file, given its path, as package.module:name; only `build` imports it."""

    type: str
    """Name of the format."""

    def build(self, path: Path) -> FieldFile:
        """Return the open file.

        Parameters
        ----------
        path : Path
            A file, or a folder that is one data set.

        Returns
        -------
        FieldFile
            A user's own reader may also return a mapping of the names of variables to arrays, (dimensions, array) or
            (dimensions, array, attributes): see Notes.

        Raises
        ------
        DataError
            The file does not have this format. Other exceptions of a user's own reader are raised as DataError.
        MissingDependencyError
            A library that the format needs is missing or too old.
        OSError
            The file cannot be opened.

        Notes
        -----
        Not collective. Each rank and each thread calls it for the files that it reads, possibly several times for the
        same file; the values must be the same each time.

        In a mapping, dimensions are a name for each axis, a str for a single axis, or None: axes are then recognised by
        position, in the order time, rows, columns. An array has any shape and a boolean, integer or floating-point
        dtype, with NaN where a value is missing. Masked values become NaN, datetime64 days since 1970-01-01, and
        timedelta64 days. One-dimensional text becomes numbers or times if it can be converted. Attributes have the
        effect that they have in NetCDF files: `units` and `standard_name`, but also `_FillValue`, `scale_factor` and
        `valid_range`.
        """
        if not self.opener:
            raise NotImplementedError
        found: FieldFile = object_at(self.opener)(path)
        return found

    @classmethod
    def load_libraries(cls) -> None:
        """Import the libraries that `build` needs, so that a rank can do so while it waits for another rank.

        Raises
        ------
        ImportError
            A library is not installed.
        """


def is_data_folder(path: Path, formats: Iterable[type[Format]]) -> bool:
    """Tell whether a folder is one data set of one of the formats."""
    return path.is_dir() and any((path / mark).is_file() for one in formats for mark in one.marks)
