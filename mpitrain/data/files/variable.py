"""What every kind of file offers: its variables, and a part of one of them as it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.errors import one_line

Slices = tuple[slice, ...]
Attribute = str | float | int | tuple[float, ...]


@dataclass(frozen=True)
class VariableInfo:
    """What a file says of a variable without reading its values. Can be pickled.

    `name` has its groups before it, "group/name". `dimensions` are named as in the file, "" where it names none.
    `chunk_shape` is the shape of the blocks that are compressed as one; None where values lie one after the other.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    chunk_shape: tuple[int, ...] | None = None
    unlimited: frozenset[int] = frozenset()
    default_fill: float | None = None

    @property
    def short_name(self) -> str:
        """The name without its groups."""
        return self.name.rpartition("/")[2]

    @property
    def units(self) -> str:
        """The attribute `units`, "" where there is none."""
        return self.text("units")

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

    def text(self, name: str) -> str:
        """Return an attribute that is text, "" where there is none or another kind."""
        value = self.attributes.get(name, "")
        return value.strip() if isinstance(value, str) else ""


class FieldFile(Protocol):
    """One open file. A handle belongs to the process that opened it: never use one across a fork."""

    @property
    def path(self) -> Path:
        """Where the file is."""

    @property
    def variables(self) -> Mapping[str, VariableInfo]:
        """The variables that can be read, by name."""

    @property
    def refused(self) -> Mapping[str, str]:
        """The variables that must not be read, with the reason."""

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as the file stores it; raises DataError where it cannot be read to the end."""

    def close(self) -> None:
        """Close the file."""


# Deflate, the strongest filter in use, makes data a thousand times smaller at most.
_STRONGEST_COMPRESSION = 2000
_WORTH_A_QUESTION_BYTES = 64 * 2**30


def ranges_of(slices: Slices, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return start, stop and step along each axis; axes that no slice names are taken whole."""
    every = (*slices, *[slice(None)] * (len(shape) - len(slices)))
    return [part.indices(size) for part, size in zip(every, shape, strict=True)]


def why_not_there(shape: tuple[int, ...], dtype: np.dtype[Any], file_bytes: int) -> str | None:
    """Say why a file of `file_bytes` cannot hold a variable's values; None where it can.

    A sparse dataset, or a damaged header, may claim more values than could be read in a lifetime.
    """
    claimed = prod(shape) * dtype.itemsize
    if claimed <= max(_WORTH_A_QUESTION_BYTES, _STRONGEST_COMPRESSION * file_bytes):
        return None
    return (
        f"it claims {claimed} bytes in a file of {file_bytes}: nearly nothing of it was written, or the file is "
        "damaged; write it with the size that its values have"
    )


def plain_attributes(given: Iterable[tuple[str, Any]]) -> dict[str, Attribute]:
    """Return attributes by name as plain Python that can be pickled, without what no reader uses.

    Names and text are on one line, with escapes for what a terminal would obey.
    """
    found = ((one_line(name), _plain_attribute(value)) for name, value in given)
    return {name: value for name, value in found if value is not None}


def _plain_attribute(value: Any) -> Attribute | None:
    if isinstance(value, bytes | np.bytes_):
        return one_line(value.decode("utf-8", "replace"))
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return one_line(value)
    array = np.asarray(value)
    if array.dtype.kind == "S" and array.size == 1:
        return one_line(bytes(array.reshape(-1)[0]).decode("utf-8", "replace"))
    if array.dtype.kind in "UO" and array.size == 1 and isinstance(array.reshape(-1)[0], str):
        return one_line(str(array.reshape(-1)[0]))
    if array.dtype.kind not in "iuf":
        return None
    values: list[float] = array.reshape(-1).tolist()
    return values[0] if len(values) == 1 else tuple(values)
