"""Dimensions match by name, as in xarray: variables lie along those of the targets, and are repeated along the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mpitrain.data.describe.cf import axis_of_dimension
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.roles import KINDS, NO_NAME, coordinate_of
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.errors import DataError

# What coordinates of one dimension have in common; the shift tells the sides of cells from their middles.
_IN_COMMON = ("units", "standard_name", "c_grid_axis_shift")
_Held = tuple[VariableInfo, int]


@dataclass(frozen=True)
class SampleDimensions:
    """The named dimensions along which samples of a file lie: a variable and its axis that is each, and its place.

    Places are 0 to 2 in (T, J, I). With `is_by_place`, where the largest target `main` has a dimension without a name,
    others match by place and size.
    """

    description: FileDescription
    main: VariableInfo
    places: Mapping[str, tuple[_Held, int]]
    is_by_place: bool

    def match(self, access: VariableAccess) -> tuple[VariableAccess, list[str]]:
        """Return a variable with its axes by the names of its dimensions, and a line for each that has another name.

        Dimensions with equal coordinates are one, and those that `data.dimensions` names. Dimensions without a name,
        and of size 1 that samples lack, stay where they are. Raises DataError for a dimension that samples lack.
        """
        info, found, lines = access.info, dict[int, int](), list[str]()
        free = [axis for axis in range(len(info.shape)) if axis not in dict(access.axes.fixed)]
        for axis in free:
            same = self._same((info, axis))
            if same is None:
                continue
            place = self.places[same][1]
            if place in found:
                raise DataError(f"{self.description.path}: variable '{info.name}' ({info.sizes}) has {same} twice")
            found[place] = axis
            if not self._is_called(info.dimensions[axis], same):
                line = f"dimension {info.dimensions[axis]} is taken for {same}: their coordinates are equal"
                lines.append(f"{self.description.path}: {line}")
        for axis in set(free) - set(found.values()):
            if axis in access.axes.order and (self.is_by_place or _is_unnamed(info, axis) or info.shape[axis] == 1):
                found.setdefault(access.axes.order.index(axis), axis)
            if info.shape[axis] != 1 and axis not in found.values():
                raise self._refusal(info, axis)
        time, rows, columns = map(found.get, range(3))
        return replace(access, axes=replace(access.axes, time=time, rows=rows, columns=columns)), lines

    def _same(self, held: _Held) -> str | None:
        """Return the dimension of samples that an axis is; None where it is none of them."""
        name = held[0].dimensions[held[1]]
        if _is_unnamed(*held):
            return None
        called = (one for one in self.places if self._is_called(name, one))
        others = (one for one in self.places if one not in held[0].dimensions)
        equal = (one for one in others if self._have_equal_coordinates(held, self.places[one][0]))
        return next(called, None) or next(equal, None)

    def _is_called(self, name: str, other: str) -> bool:
        same = self.description.same_dimensions
        return same.get(name, name) == same.get(other, other)

    def _coordinate(self, held: _Held) -> VariableInfo | None:
        return coordinate_of(held[0], held[0].dimensions[held[1]], self.description.variables)

    def _have_equal_coordinates(self, one: _Held, other: _Held) -> bool:
        first, second = self._coordinate(one), self._coordinate(other)
        if first is None or second is None or first.shape != second.shape or not (first.is_numeric & second.is_numeric):
            return False
        role = axis_of_dimension(first)
        if role is None or role != axis_of_dimension(second):
            return False
        values, others = (read_column(self.description.file, each) for each in (first, second))
        return all(first.text(key) == second.text(key) for key in _IN_COMMON) and np.array_equal(values, others)

    def _refusal(self, info: VariableInfo, axis: int) -> DataError:
        name, own = info.dimensions[axis], self._coordinate((info, axis))
        role = None if own is None else axis_of_dimension(own)
        alike = [
            other for other, (held, place) in self.places.items()
            if held[0].shape[held[1]] == info.shape[axis] and role in (None, KINDS[place])
        ]  # fmt: skip
        position = f"{info.short_name}[{name}=0]" if name else f"{info.short_name}[:, 0]"
        return DataError(
            f"{self.description.path}: variable '{info.name}' ({info.sizes}) has dimension {name or f'number {axis}'}, "
            f"which '{self.main.name}' ({self.main.sizes}) lacks: samples lie along the dimensions of the targets; "
            f"take another variable, or one position, as in {position}"
            + (f", or data.dimensions={{{name}: {alike[0]}}} if both are one" if alike and name else "")
        )


def sample_dimensions(
    description: FileDescription, held: Iterable[VariableAccess], are_targets: bool
) -> SampleDimensions:  # fmt: skip
    """Return the dimensions of the targets together, those of the largest first; of other variables, the largest's.

    A place that one of them has taken is no other's.
    """
    largest_first = sorted(held, key=lambda one: math.prod(one.shape), reverse=True)
    places: dict[str, tuple[_Held, int]] = {}
    for one in largest_first if are_targets else largest_first[:1]:
        taken = {place for _, place in places.values()}
        for place, axis in enumerate(one.axes.order):
            if axis is not None and place not in taken and not _is_unnamed(one.info, axis):
                places.setdefault(one.info.dimensions[axis], ((one.info, axis), place))
    main = largest_first[0]
    is_by_place = any(axis is not None and _is_unnamed(main.info, axis) for axis in main.axes.order)
    return SampleDimensions(description, main.info, places, is_by_place)


def _is_unnamed(info: VariableInfo, axis: int) -> bool:
    return NO_NAME.fullmatch(info.dimensions[axis].lower()) is not None
