"""What every kind of file offers: its variables, and a part of one of them as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

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
    def is_numeric(self) -> bool:
        """Whether values are numbers."""
        return self.dtype.lstrip("<>=|")[:1] in ("f", "i", "u", "b")

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


def plain_attribute(value: Any) -> Attribute | None:
    """Return an attribute's value as plain Python that can be pickled; None for what no reader uses."""
    if isinstance(value, bytes | np.bytes_):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | int | float):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "S" and array.size == 1:
        return bytes(array.reshape(-1)[0]).decode("utf-8", "replace")
    if array.dtype.kind in "UO" and array.size == 1 and isinstance(array.reshape(-1)[0], str):
        return str(array.reshape(-1)[0])
    if array.dtype.kind not in "iuf":
        return None
    values: list[float] = array.reshape(-1).tolist()
    return values[0] if len(values) == 1 else tuple(values)
