"""Protocol of open data files (`FieldFile`) and the description of their variables."""

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
    """Metadata of a variable, known without reading its values. Can be pickled.

    Attributes
    ----------
    name : str
        The name with its groups, "group/name".
    dimensions : tuple of str, one per axis
        Names as in the file; "" for a dimension without a name.
    shape : tuple of int
        Sizes of the dimensions; () for a scalar.
    dtype : str
        numpy's name of the stored type, such as "<f4"; "O" for objects and values of variable length.
    attributes : mapping of str to str, float, int or tuple of float
        Attributes as in the file, those of the CF conventions among them.
    chunk_shape : tuple of int or None
        Shape of the stored chunks; the whole shape for arrays of .npz, .pt and a user's own reader; None for values
        that are stored contiguously.
    unlimited : frozenset of int
        The axes of unlimited dimensions.
    default_fill : float or None
        NetCDF's default fill value of the type; None for other formats, and for types without one.
    missing : tuple of float
        Stored numbers that are missing values by the settings.
    largest : float
        Numbers with |x| >= `largest` are missing values by the settings; default infinity.
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
        """The name without the groups."""
        return self.name.rpartition("/")[2]

    @property
    def units(self) -> str:
        """The attribute `units`, "" if there is none; for absolute times the units of the decoded values."""
        own = self.text("units")
        return DAYS if is_absolute(own) else own

    @property
    def sizes(self) -> str:
        """The dimensions with their sizes, as text for messages."""
        pairs = zip(self.dimensions, self.shape, strict=True)
        return ", ".join(f"{name}={size}" if name else str(size) for name, size in pairs)

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return self.dtype.lstrip("<>=|")[:1] in ("f", "i", "u", "b")

    @property
    def is_text(self) -> bool:
        """Whether the values are text, or single characters."""
        return self.dtype.lstrip("<>=|")[:1] in ("S", "U", "O")

    @property
    def item_bytes(self) -> int:
        """Bytes of one value; 1 for text."""
        return np.dtype(self.dtype).itemsize if self.is_numeric else 1

    def text(self, name: str) -> str:
        """Return a text attribute; "" if there is none or it is not text."""
        value = self.attributes.get(name, "")
        return value.strip() if isinstance(value, str) else ""


class Variables(dict[str, VariableInfo]):
    """The variables of a file by name, with cached groups by other properties: lookups need not scan all variables.

    It must not be changed after the first call of `numeric_by`.
    """

    def __init__(self, variables: Mapping[str, VariableInfo] | Iterable[tuple[str, VariableInfo]] = ()) -> None:
        """Store the variables in the order of the file."""
        super().__init__(variables)
        self._groups: dict[Callable[[VariableInfo], str], dict[str, list[str]]] = {}

    @property
    def dimension_sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return {name: size for info in self.values() for name, size in zip(info.dimensions, info.shape, strict=True)}

    def numeric_by(self, key: Callable[[VariableInfo], str]) -> Mapping[str, list[str]]:
        """Return the names of the numeric variables grouped by `key(variable)`, in the order of the file."""
        if key not in self._groups:
            groups = self._groups[key] = {}
            for name, info in self.items():
                if info.is_numeric:
                    groups.setdefault(key(info), []).append(name)
        return self._groups[key]


class FieldFile(Protocol):
    """One open file. It belongs to the process that opened it and must not be used after a fork.

    An object that a user's own reader returns needs the same members (see `Format.build`). Threads do not share an open
    file. No member is collective.
    """

    @property
    def path(self) -> Path:
        """The path of the file, for messages."""

    @property
    def variables(self) -> Variables:
        """The variables that can be read, by name."""

    @property
    def refused(self) -> Mapping[str, str]:
        """The variables that must not be read, by name, with the reason."""

    stored_sum: StoredSum
    """Checksum of all values that were read: `read_stored` adds to it, and the caller may replace the object."""

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored.

        Parameters
        ----------
        name : str
            A name in `variables`.
        slices : tuple of slice
            Slices with step 1 along the first dimensions; dimensions without a slice are read completely.

        Returns
        -------
        ndarray of the stored type
            Shape of the selected part, in the file's order of dimensions. The caller must not modify it. Packing, fill
            values and valid ranges are not applied: the caller decodes the values by the variable's attributes.

        Raises
        ------
        DataError
            The part cannot be read completely.
        """

    def note_of(self, name: str) -> str | None:
        """Return a note on a variable for the user, such as chunks that are not stored.

        Parameters
        ----------
        name : str
            A name in `variables`.

        Returns
        -------
        str or None
            The note without the names of file and variable; None if there is none.
        """

    def close(self) -> None:
        """Close the file."""


# Uncompressed size that is accepted for a file of up to 10 MB; larger files may exceed it as far as deflate, the
# strongest filter in use, can compress.
MOST_OF_SMALL_FILE_BYTES = 400 * 10**6
_SMALL_FILE_BYTES = 10 * 10**6
_STRONGEST_COMPRESSION = 2000


def ranges_of(slices: Slices, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return start, stop and step along each axis; trailing axes without a slice are selected completely."""
    every = (*slices, *[slice(None)] * (len(shape) - len(slices)))
    return [part.indices(size) for part, size in zip(every, shape, strict=True)]


def reason_too_large(claimed_bytes: int, file_bytes: Callable[[], int]) -> str | None:
    """Return why a file cannot contain so many bytes of values; None if it can. For any format, before values are read.

    A sparse dataset, a damaged header or a malicious file may declare more values than fit into memory.
    """
    if claimed_bytes <= MOST_OF_SMALL_FILE_BYTES:
        return None
    size_bytes = file_bytes()
    large_part = max(0, size_bytes - _SMALL_FILE_BYTES)
    if claimed_bytes <= MOST_OF_SMALL_FILE_BYTES + _STRONGEST_COMPRESSION * large_part:
        return None
    return (
        f"it claims {claimed_bytes} bytes in a file of {size_bytes}: most of its values were never written, or the "
        "file is damaged; write it with the actual size, and without compression if nearly all values are equal"
    )


def check_claims(infos: Iterable[VariableInfo], path: Path) -> None:
    """Raise DataError if the variables that are read together declare more bytes than their file can contain."""
    claimed = sum(prod(info.shape) * info.item_bytes for info in {info.name: info for info in infos}.values())
    if reason := reason_too_large(claimed, lambda: bytes_of(path)):
        raise DataError(f"{path}: the variables that are read cannot all be in the file: {reason}")


def bytes_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder and in the folders below; links are not followed."""
    if not path.is_dir():
        return path.stat().st_size
    files = (os.path.join(above, name) for above, _, names in os.walk(path) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def plain_attributes(given: Iterable[tuple[str, Any]]) -> dict[str, Attribute]:
    """Return attributes by name as plain Python values that can be pickled; types that no reader uses are left out.

    Control characters in names and text are escaped: they could change the state of a terminal.
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
    """Return stored text as strings: bytes are decoded, and characters are joined along the last of several axes."""
    if stored.dtype == "S1" and stored.ndim > 1:
        stored = np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]
    return np.char.decode(stored, "utf-8", "replace") if stored.dtype.kind == "S" else stored


def first_part(info: VariableInfo, fixed: Mapping[int, int]) -> tuple[slice, ...]:
    """Return slices of up to 10^6 values at the start of a level; the same for variables along the same dimensions."""
    return tuple(
        slice(fixed[axis], fixed[axis] + 1) if axis in fixed else slice(0, length)
        for axis, length in zip(range(len(info.shape)), _lengths(info, fixed), strict=True)
    )


def _lengths(info: VariableInfo, fixed: Mapping[int, int]) -> Iterator[int]:
    for axis, size in enumerate(info.shape):
        inside = prod(one for other, one in enumerate(info.shape) if other > axis and other not in fixed)
        yield min(size, max(1, _MOST_VALUES // inside))
