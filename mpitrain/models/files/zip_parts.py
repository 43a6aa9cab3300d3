"""The parts of a torch archive: a zip of one folder, whose entries are stored as they are, one after the other.

Nothing is trusted: names, sizes and places are checked before a byte is read, and no more memory is taken than the file
has bytes. Nothing is ever unpacked into the file system.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import IO

from mpitrain.config import shorten

_MOST_PARTS = 100_000
LONGEST_NAME = 1000
_LOCAL_HEADER = struct.Struct("<4s22xHH")
# What zipfile raises for damaged archives, in its own words and in those of the modules below it.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError, ValueError)


class ArchiveError(ValueError):
    """No archive of numbers, or a damaged one: says in a few words, on one line, what is wrong."""


class ZipParts:
    """The parts of an archive by their names within its one folder, such as `data.pkl` or `data/0`."""

    def __init__(self, file: IO[bytes]) -> None:
        """Look through the list of parts. Raises ArchiveError where it is damaged or made to deceive."""
        try:
            self._zip = zipfile.ZipFile(file)
            self._entries = _named(self._zip.infolist())
            _refuse_overlaps(file, self._zip.infolist(), self._zip.start_dir)
        except ArchiveError:
            raise
        except ZIP_ERRORS as error:
            raise ArchiveError(f"is no archive: {shorten(str(error))}") from error

    def size(self, name: str) -> int | None:
        """Return how many bytes a part has; None where there is no such part."""
        entry = self._entries.get(name)
        return None if entry is None else entry.file_size

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return a part that is stored uncompressed. Raises ArchiveError, also where its check sum differs."""
        entry = self._entries.get(name)
        if entry is None:
            raise ArchiveError(f"has no part '{shorten(name)}'")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ArchiveError(f"'{shorten(name)}' is compressed, which torch never does with numbers")
        if entry.file_size > most_bytes:
            raise ArchiveError(f"'{shorten(name)}' has {entry.file_size} bytes, more than the {most_bytes} it may have")
        try:
            return self._zip.read(entry)
        except ZIP_ERRORS as error:
            raise ArchiveError(f"'{shorten(name)}' is damaged: {shorten(str(error))}") from error

    def head(self, name: str, most_bytes: int) -> bytes:
        """Return the first `most_bytes` of a part, which may be compressed; nothing where it is not there or damaged.

        Raises ArchiveError where it is longer.
        """
        entry = self._entries.get(name)
        if entry is None:
            return b""
        try:
            with self._zip.open(entry) as part:
                content = part.read(most_bytes + 1)
        except ZIP_ERRORS:
            return b""
        if len(content) > most_bytes:
            raise ArchiveError(f"'{shorten(name)}' has more than {most_bytes} bytes")
        return content


def _named(entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    if len(entries) > _MOST_PARTS:
        raise ArchiveError(f"has {len(entries)} parts, more than the {_MOST_PARTS} it may have")
    for entry in entries:
        _check_name(entry.orig_filename)
    folders = {entry.orig_filename.split("/", 1)[0] for entry in entries}
    if len(folders) != 1:
        raise ArchiveError("is not one folder")
    found = {entry.orig_filename.split("/", 1)[1]: entry for entry in entries}
    if len(found) != len(entries):
        raise ArchiveError("has two parts of one name")
    return found


def _check_name(name: str) -> None:
    is_plain = name.isprintable() and "\\" not in name and len(name) <= LONGEST_NAME
    steps = name.split("/")
    if not is_plain or len(steps) < 2 or not all(steps) or ".." in steps or "." in steps:
        raise ArchiveError(f"has a part named '{shorten(name)}'")


def _refuse_overlaps(file: IO[bytes], entries: list[zipfile.ZipInfo], end: int) -> None:
    """Many entries over the same bytes make a small file a large one."""
    if end > file.seek(0, os.SEEK_END):
        raise ArchiveError("is cut off")
    for entry in sorted(entries, key=lambda entry: entry.header_offset, reverse=True):
        if entry.header_offset < 0 or entry.compress_size < 0:
            raise ArchiveError(f"'{shorten(entry.orig_filename)}' lies outside the file")
        file.seek(entry.header_offset)
        _, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length + entry.compress_size > end:
            raise ArchiveError(f"'{shorten(entry.orig_filename)}' lies over another part, or outside the file")
        end = entry.header_offset
