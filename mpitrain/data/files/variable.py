"""What every kind of file offers: its variables, and a part of one of them as it is stored."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import DAYS, is_absolute
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.errors import DataError, one_line

Slices = tuple[slice, ...]
Attribute = str | float | int | tuple[float, ...]
_MOST_VALUES = 1_000_000


@dataclass(frozen=True)
class VariableInfo:
    """What a file says of a variable without reading its values. Can be pickled.

    `name` has its groups before it, "group/name". `dimensions` are named as in the file, "" where it names none.
    `chunk_shape` is the shape of the blocks that are compressed as one; None where values lie one after the other.
    `missing` are stored numbers that stand for no value, and |x| from `largest` on is none, by the settings.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    chunk_shape: tuple[int, ...] | None = None
    unlimited: frozenset[int] = frozenset()
    default_fill: float | None = None
    missing: tuple[float, ...] = ()
    largest: float = math.inf

    @property
    def short_name(self) -> str:
        """The name without its groups."""
        return self.name.rpartition("/")[2]

    @property
    def units(self) -> str:
        """The attribute `units`, "" where there is none; of absolute times those in which they are decoded."""
        own = self.text("units")
        return DAYS if is_absolute(own) else own

    @property
    def sizes(self) -> str:
        """The dimensions with their sizes, for people."""
        pairs = zip(self.dimensions, self.shape, strict=True)
        return ", ".join(f"{name}={size}" if name else str(size) for name, size in pairs)

    @property
    def is_numeric(self) -> bool:
        """Whether values are numbers."""
        return self.dtype.lstrip("<>=|")[:1] in ("f", "i", "u", "b")

    @property
    def is_text(self) -> bool:
        """Whether values are words, or single letters."""
        return self.dtype.lstrip("<>=|")[:1] in ("S", "U", "O")

    @property
    def item_bytes(self) -> int:
        """Bytes of one value; 1 for text."""
        return np.dtype(self.dtype).itemsize if self.is_numeric else 1

    def text(self, name: str) -> str:
        """Return an attribute that is text, "" where there is none or another kind."""
        value = self.attributes.get(name, "")
        return value.strip() if isinstance(value, str) else ""


class Variables(dict[str, VariableInfo]):
    """The variables of a file by name, and by whatever else they are looked for, in time that does not grow with them.

    It must not be changed once it was asked for a group.
    """

    def __init__(self, variables: Mapping[str, VariableInfo] | Iterable[tuple[str, VariableInfo]] = ()) -> None:
        """Hold the variables in the order of the file."""
        super().__init__(variables)
        self._groups: dict[Callable[[VariableInfo], str], dict[str, list[str]]] = {}

    @property
    def dimension_sizes(self) -> dict[str, int]:
        """How long each dimension is."""
        return {name: size for info in self.values() for name, size in zip(info.dimensions, info.shape, strict=True)}

    def numeric_by(self, key: Callable[[VariableInfo], str]) -> Mapping[str, list[str]]:
        """Return the names of numeric variables by what `key` returns for each, in the order of the file."""
        if key not in self._groups:
            groups = self._groups[key] = {}
            for name, info in self.items():
                if info.is_numeric:
                    groups.setdefault(key(info), []).append(name)
        return self._groups[key]


class FieldFile(Protocol):
    """One open file. A handle belongs to the process that opened it: never use one across a fork."""

    @property
    def path(self) -> Path:
        """Where the file is."""

    @property
    def variables(self) -> Variables:
        """The variables that can be read, by name."""

    @property
    def refused(self) -> Mapping[str, str]:
        """The variables that must not be read, with the reason."""

    stored_sum: StoredSum
    """Checksum of all that was read."""

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as the file stores it; raises DataError where it cannot be read to the end."""

    def note_of(self, name: str) -> str | None:
        """Return what is to be known of a variable before its values are used: what is not stored; None for nothing."""

    def close(self) -> None:
        """Close the file."""


# What a file of up to 10 MB may claim to hold; beyond that deflate, the strongest filter in use, counts.
MOST_OF_SMALL_FILE_BYTES = 400 * 10**6
_SMALL_FILE_BYTES = 10 * 10**6
_STRONGEST_COMPRESSION = 2000


def ranges_of(slices: Slices, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return start, stop and step along each axis; axes that no slice names are taken whole."""
    every = (*slices, *[slice(None)] * (len(shape) - len(slices)))
    return [part.indices(size) for part, size in zip(every, shape, strict=True)]


def why_not_there(claimed_bytes: int, file_bytes: Callable[[], int]) -> str | None:
    """Return why a file cannot hold so many bytes of values; None where it can. For any format, before any is read.

    A sparse dataset, a damaged header, or a file made to fill the memory may claim more than a computer has.
    """
    if claimed_bytes <= MOST_OF_SMALL_FILE_BYTES:
        return None
    size_bytes = file_bytes()
    large_part = max(0, size_bytes - _SMALL_FILE_BYTES)
    if claimed_bytes <= MOST_OF_SMALL_FILE_BYTES + _STRONGEST_COMPRESSION * large_part:
        return None
    return (
        f"it claims {claimed_bytes} bytes in a file of {size_bytes}: nearly nothing of it was written, or the file is "
        "damaged; write it with the size that its values have, without compression where they are nearly all alike"
    )


def check_claims(infos: Iterable[VariableInfo], path: Path) -> None:
    """Raise DataError where variables that are read together claim more than their file can hold."""
    claimed = sum(prod(info.shape) * info.item_bytes for info in {info.name: info for info in infos}.values())
    if reason := why_not_there(claimed, lambda: bytes_of(path)):
        raise DataError(f"{path}: the variables that are read cannot all be there: {reason}")


def bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder and in the folders below; links are not followed."""
    if not path.is_dir():
        return path.stat().st_size
    files = (os.path.join(above, name) for above, _, names in os.walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def plain_attributes(given: Iterable[tuple[str, Any]]) -> dict[str, Attribute]:
    """Return attributes by name as plain Python that can be pickled, without what no reader uses.

    Names and text are on one line, with escapes for what a terminal would obey.
    """
    found = ((one_line(str(name)), _plain_attribute(value)) for name, value in given)
    return {name: value for name, value in found if value is not None}


def _plain_attribute(value: Any) -> Attribute | None:
    if isinstance(value, bytes | np.bytes_):
        return one_line(value.decode("utf-8", "replace"))
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return one_line(value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # lists of unequal length
        return None
    if array.dtype.kind == "S" and array.size == 1:
        return one_line(bytes(array.reshape(-1)[0]).decode("utf-8", "replace"))
    if array.dtype.kind in "UO" and array.size == 1 and isinstance(array.reshape(-1)[0], str):
        return one_line(str(array.reshape(-1)[0]))
    if array.dtype.kind not in "iuf":
        return None
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    values: list[float] = array.reshape(-1).tolist()
    return values[0] if len(values) == 1 else tuple(values)


def texts_of(stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return stored text as words: bytes are decoded, and letters along the last of several dimensions are joined."""
    if stored.dtype == "S1" and stored.ndim > 1:
        stored = np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]
    return np.char.decode(stored, "utf-8", "replace") if stored.dtype.kind == "S" else stored


def first_part(info: VariableInfo, fixed: Mapping[int, int]) -> tuple[slice, ...]:
    """Return the slices of a first part of a level: the same of all variables along the same dimensions."""
    return tuple(
        slice(fixed[axis], fixed[axis] + 1) if axis in fixed else slice(0, length)
        for axis, length in zip(range(len(info.shape)), _lengths(info, fixed), strict=True)
    )


def _lengths(info: VariableInfo, fixed: Mapping[int, int]) -> Iterator[int]:
    for axis, size in enumerate(info.shape):
        inside = prod(one for other, one in enumerate(info.shape) if other > axis and other not in fixed)
        yield min(size, max(1, _MOST_VALUES // inside))
