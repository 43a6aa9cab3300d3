"""Reader of the parts of a torch archive: a zip file of one folder, with uncompressed entries one after the other.

The file is not trusted: names, sizes and offsets are checked before any part is read, and `read` takes no more memory
than the file has bytes. Nothing is unpacked into the file system.
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
# What zipfile, and the modules that it uses, raise for damaged archives.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError, ValueError)


class ArchiveError(ValueError):
    """Raised for a file that is damaged or not an archive of tensors; the message is one short line."""


class ZipParts:
    """The parts of an archive by their names within its one folder, such as `data.pkl` or `data/0`."""

    def __init__(self, file: IO[bytes]) -> None:
        """Check the list of parts. Raises ArchiveError if it is damaged or made to deceive."""
        try:
            self._zip = zipfile.ZipFile(file)
            self._entries = _named(self._zip.infolist())
            _refuse_overlaps(file, self._zip.infolist(), self._zip.start_dir)
        except ArchiveError:
            raise
        except ZIP_ERRORS as error:
            raise ArchiveError(f"is not an archive: {shorten(str(error))}") from error

    def size(self, name: str) -> int | None:
        """Return the number of bytes of a part; None if there is no part of this name."""
        entry = self._entries.get(name)
        return None if entry is None else entry.file_size

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return a part that is stored uncompressed, of at most `most_bytes`.

        Raises ArchiveError if the part is missing, compressed, larger, or does not match its checksum.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ArchiveError(f"has no part '{shorten(name)}'")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ArchiveError(f"'{shorten(name)}' is compressed, but torch stores tensors uncompressed")
        if entry.file_size > most_bytes:
            raise ArchiveError(f"'{shorten(name)}' has {entry.file_size} bytes, more than the {most_bytes} allowed")
        try:
            return self._zip.read(entry)
        except ZIP_ERRORS as error:
            raise ArchiveError(f"'{shorten(name)}' is damaged: {shorten(str(error))}") from error

    def head(self, name: str, most_bytes: int) -> bytes:
        """Return a part of at most `most_bytes`, which may be compressed; b"" if it is missing or damaged.

        Raises ArchiveError if it is longer.
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
        raise ArchiveError(f"has {len(entries)} parts, more than the {_MOST_PARTS} allowed")
    for entry in entries:
        _check_name(entry.orig_filename)
    folders = {entry.orig_filename.split("/", 1)[0] for entry in entries}
    if len(folders) != 1:
        raise ArchiveError("does not consist of one folder")
    found = {entry.orig_filename.split("/", 1)[1]: entry for entry in entries}
    if len(found) != len(entries):
        raise ArchiveError("has two parts with the same name")
    return found


def _check_name(name: str) -> None:
    is_plain = name.isprintable() and "\\" not in name and len(name) <= LONGEST_NAME
    steps = name.split("/")
    if not is_plain or len(steps) < 2 or not all(steps) or ".." in steps or "." in steps:
        raise ArchiveError(f"has a part with the invalid name '{shorten(name)}'")


def _refuse_overlaps(file: IO[bytes], entries: list[zipfile.ZipInfo], end: int) -> None:
    """Raise ArchiveError if entries overlap: a small file could then expand to a large one."""
    if end > file.seek(0, os.SEEK_END):
        raise ArchiveError("is truncated")
    for entry in sorted(entries, key=lambda entry: entry.header_offset, reverse=True):
        if entry.header_offset < 0 or entry.compress_size < 0:
            raise ArchiveError(f"'{shorten(entry.orig_filename)}' lies outside the file")
        file.seek(entry.header_offset)
        _, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length + entry.compress_size > end:
            raise ArchiveError(f"'{shorten(entry.orig_filename)}' overlaps another part or lies outside the file")
        end = entry.header_offset
