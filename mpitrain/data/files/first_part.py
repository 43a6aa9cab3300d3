"""The first part of a variable, which says much of it at a small cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from mpitrain.data.files.variable import VariableInfo

_MOST_VALUES = 1_000_000


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
