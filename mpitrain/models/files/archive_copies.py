"""Archives that differ in their numbers only: written and read by exchanging these in one that torch has written.

Many networks of one architecture have the same code, names and texts; having each compiled into an archive anew, or
taken apart, costs a hundred times what its numbers do.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mpitrain.models.files.archive import tensors_in_parts
from mpitrain.models.files.zip_parts import ZIP_ERRORS

Numbers = Mapping[str, torch.Tensor]
# Lengths of a name and what follows it, in the header before a part and in the list of parts at the end of a zip.
_LOCAL_LENGTHS, _LISTED_LENGTHS = struct.Struct("<26xHH"), struct.Struct("<28xHHH12x")
_CHECK_SUM_IN_LIST, _CHECK_SUM, _CHECK_SUM_FOLLOWS = 16, struct.Struct("<I"), 0x08
_FOLLOWING = b"PK\x07\x08"
_SERIALIZATION_ID = ".data/serialization_id"
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class _Part:
    """Where a part's bytes lie, its check sum, and where this is written: after the part and in the list of parts."""

    name: str
    start: int
    size: int
    check_sum: int
    check_sum_places: tuple[int, int]

    @property
    def place(self) -> slice:
        return slice(self.start, self.start + self.size)


class ArchiveTemplate:
    """An archive in which the numbers of all tensors can be exchanged. Raises ValueError for one where they cannot."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        try:
            self._parts = _parts_of(content)
        except ZIP_ERRORS as error:
            raise ValueError("is no archive that numbers can be exchanged in") from error
        by_name = {part.name: part for part in self._parts}
        self.tensors = tensors_in_parts(content)
        self._places = {name: by_name[f"data/{key}"] for name, (key, _) in self.tensors.items()}
        self._id = by_name[_SERIALIZATION_ID]
        if len({part.name for part in self._places.values()}) < len(self._places):
            raise ValueError("some of its tensors share their numbers")
        if self.with_numbers({name: tensor for name, (_, tensor) in self.tensors.items()}) != content:
            raise ValueError("torch writes it in another way than is known here")

    def with_numbers(self, numbers: Numbers) -> bytes:
        """Return what torch would write for `numbers`, of the same names, shapes and dtypes as in the template."""
        return self._with_bytes({name: tensor.numpy().tobytes() for name, tensor in numbers.items()})

    def numbers_in(self, content: bytes) -> dict[str, torch.Tensor] | None:
        """Return the numbers of an archive that differs from the template in nothing else; None for any other."""
        if len(content) != len(self._content):
            return None
        found = {name: content[part.place] for name, part in self._places.items()}
        if self._with_bytes(found) != content:  # its check sums too
            return None
        like = {name: tensor for name, (_, tensor) in self.tensors.items()}
        return {name: _tensor_of(values, like[name]) for name, values in found.items()}

    def _with_bytes(self, numbers: Mapping[str, bytes]) -> bytes:
        content, sums = bytearray(self._content), {}
        for name, values in numbers.items():
            part = self._places[name]
            if len(values) != part.size:
                raise ValueError(f"'{name}' has {len(values)} bytes, not {part.size}")
            content[part.place] = values
            sums[part.name] = zlib.crc32(values)
            _set_check_sum(content, part, sums[part.name])
        content[self._id.place] = content[self._id.place][:20] + f"{self._sum_of_sums(sums):020d}".encode()
        _set_check_sum(content, self._id, zlib.crc32(content[self._id.place]))
        return bytes(content)

    def _sum_of_sums(self, changed: Mapping[str, int]) -> int:
        """Return the second half of an archive's identity: its parts' check sums, combined as torch's writer does."""
        total = 0
        for part in self._parts:
            if part.name != _SERIALIZATION_ID:
                one = changed.get(part.name, part.check_sum)
                total ^= (one + 0x9E3779B9 + (total << 6) + (total >> 2)) & _WORD
        return total


def _set_check_sum(content: bytearray, part: _Part, value: int) -> None:
    for place in part.check_sum_places:
        _CHECK_SUM.pack_into(content, place, value)


def _tensor_of(values: bytes, like: torch.Tensor) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=like.dtype).view(like.shape) if values else torch.empty_like(like)


def _parts_of(content: bytes) -> list[_Part]:
    """Return the parts of a zip of one folder, in order. Raises ValueError where a check sum precedes its part."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries, listed = archive.infolist(), archive.start_dir
    parts = []
    for entry in entries:
        first = entry.header_offset
        start = first + _LOCAL_LENGTHS.size + sum(_LOCAL_LENGTHS.unpack_from(content, first))
        end = start + entry.compress_size
        if not entry.flag_bits & _CHECK_SUM_FOLLOWS or content[end : end + len(_FOLLOWING)] != _FOLLOWING:
            raise ValueError(f"'{entry.filename}' has its check sum in another place")
        places = end + len(_FOLLOWING), listed + _CHECK_SUM_IN_LIST
        name = entry.filename.partition("/")[2]
        parts.append(_Part(name, start, entry.compress_size, entry.CRC, places))
        listed += _LISTED_LENGTHS.size + sum(_LISTED_LENGTHS.unpack_from(content, listed))
    return parts
