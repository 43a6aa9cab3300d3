"""Reader of the headers of classic NetCDF files, to detect truncated files, which the NetCDF library reads as zeros.

The grammar of the header is in the NetCDF user's guide, "File format specifications": CDF-1, CDF-2 and CDF-5.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from mpitrain.errors import one_line

# Bytes per value of the external types, by their number from NC_BYTE = 1
_TYPE_SIZES = (0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8)
_TEXT = 2
_OFFSET_FORMATS = {1: ">I", 2: ">Q", 5: ">Q"}


def read_variable_ends(path: Path) -> dict[str, int]:
    """Return the offset of the byte after each variable's last value; empty for a file that is not classic NetCDF.

    Raises OSError, and EOFError for a truncated or damaged header.
    """
    return _of_header(path, lambda header: _ends(*header.read()))


def read_global_texts(path: Path) -> dict[str, str]:
    """Return the global text attributes, by name; empty for a file that is not classic NetCDF.

    Raises OSError, and EOFError for a truncated or damaged header.
    """
    return _of_header(path, _Header.read_global_texts)


def _of_header(path: Path, read: Callable[[_Header], dict[str, Any]]) -> dict[str, Any]:
    with path.open("rb") as file:
        magic = file.read(4)
        if magic[:3] != b"CDF" or magic[3] not in _OFFSET_FORMATS:
            return {}
        try:
            return read(_Header(file, magic[3]))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise EOFError(f"the header is damaged ({error})") from error


def _ends(num_records: int, variables: list[tuple[str, list[int], int, int]]) -> dict[str, int]:
    # The first dimension of a record variable is the unlimited one, of length 0 in the header. Record n of all record
    # variables precedes record n + 1.
    sizes = {name: math.prod(shape[1:] if _is_record(shape) else shape) * width for name, shape, width, _ in variables}
    in_records = [sizes[name] for name, shape, _, _ in variables if _is_record(shape)]
    record_size = in_records[0] if len(in_records) == 1 else sum(map(_padded, in_records))
    ends = {}
    for name, shape, _, begin in variables:
        skipped = (num_records - 1) * record_size if _is_record(shape) else 0
        ends[name] = begin + skipped + sizes[name] if skipped >= 0 else begin
    return ends


def _is_record(shape: list[int]) -> bool:
    return bool(shape) and shape[0] == 0


def _padded(size: int) -> int:
    return -(-size // 4) * 4


class _Header:
    def __init__(self, file: BinaryIO, version: int) -> None:
        self._file = file
        self._file_bytes = os.fstat(file.fileno()).st_size
        self._count_format = ">Q" if version == 5 else ">I"
        self._offset_format = _OFFSET_FORMATS[version]

    def read(self) -> tuple[int, list[tuple[str, list[int], int, int]]]:
        """Return the number of records, and the name, shape, bytes per value and offset of each variable."""
        num_records = self._count()
        if num_records == 2 ** (8 * struct.calcsize(self._count_format)) - 1:
            num_records = 0  # the file is still being written: the number of records is unknown
        dimensions = [self._dimension() for _ in range(self._list_length())]
        self._attributes()
        return num_records, [self._variable(dimensions) for _ in range(self._list_length())]

    def read_global_texts(self) -> dict[str, str]:
        """Return the global text attributes, by name."""
        self._count()
        for _ in range(self._list_length()):
            self._dimension()
        return self._attributes()

    def _dimension(self) -> int:
        self._name()
        return self._count()

    def _variable(self, dimensions: list[int]) -> tuple[str, list[int], int, int]:
        name = self._name()
        shape = [dimensions[self._count()] for _ in range(self._length())]
        self._attributes()
        width = _TYPE_SIZES[self._number(">I")]
        self._count()  # skip vsize, which overflows for large variables; the size follows from the shape
        return name, shape, width, self._number(self._offset_format)

    def _attributes(self) -> dict[str, str]:
        """Return the text attributes, by name; the others are skipped."""
        texts = {}
        for _ in range(self._list_length()):
            name, kind = self._name(), self._number(">I")
            length = self._length()
            if kind == _TEXT:
                texts[name] = one_line(self._file.read(_padded(length))[:length].decode("utf-8", "replace"))
            else:
                self._file.seek(_padded(length * _TYPE_SIZES[kind]), 1)
        return texts

    def _list_length(self) -> int:
        self._number(">I")  # the tag of the list; 0 for an empty list
        return self._length()

    def _name(self) -> str:
        length = self._length()
        return one_line(self._file.read(_padded(length))[:length].decode())

    def _length(self) -> int:
        """Return the number of items that follow. Raises EOFError if it exceeds the size of the file."""
        length = self._count()
        if length > self._file_bytes:
            raise EOFError(f"the header is damaged: {length} items in a file of {self._file_bytes} bytes")
        return length

    def _count(self) -> int:
        return self._number(self._count_format)

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._file.read(struct.calcsize(form)))[0]
        return value
