"""Matching of dimensions by name, as in xarray: variables are arranged along the targets' dimensions, and broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mpitrain.data.describe.cf import axis_of_dimension
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.roles import KINDS, NO_NAME, coordinate_of
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.errors import DataError

# Attributes that coordinates of one dimension share; the shift distinguishes the edges of cells from their centres.
_IN_COMMON = ("units", "calendar", "standard_name", "c_grid_axis_shift")
_Axis = tuple[VariableInfo, int]


@dataclass(frozen=True)
class SampleDimensions:
    """The named dimensions along which samples of a file lie.

    `places` maps each name to a variable and its axis that define the dimension, and to the dimension's position, 0 to
    2 in (T, J, I). With `is_by_place` the largest target, `main`, has an unnamed dimension: other variables match by
    position and size. With `are_rows` that dimension is its only one: each row of a table is a time level.
    """

    description: FileDescription
    main: VariableInfo
    places: Mapping[str, tuple[_Axis, int]]
    is_by_place: bool
    are_rows: bool = False
    _compared: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    def match(self, access: VariableAccess) -> tuple[VariableAccess, list[str]]:
        """Return a variable with its axes matched by dimension name, and a notice for each match of different names.

        Dimensions with equal coordinates are the same, as are those that `data.dimensions` pairs. Unnamed dimensions,
        and dimensions of size 1 that samples lack, keep their position. Raises DataError if the variable has another
        dimension that samples lack.
        """
        info, axes, named, lines = access.info, access.axes, dict[int, str](), list[str]()
        free = [axis for axis in range(len(info.shape)) if axis not in dict(axes.fixed)]
        for axis in free:
            same = self._same((info, axis))
            if same is None or same in named.values():
                continue
            named[axis] = same
            if not self.description.is_same_dimension(info.dimensions[axis], same):
                lines.append(f"dimension {info.dimensions[axis]} is used as {same}: their coordinates are equal")
        found = {self.places[same][1]: axis for axis, same in named.items()}
        for axis in sorted((one for one in free if one not in named), key=lambda one: info.shape[one] == 1):
            if axis in axes.order and (self.is_by_place or _is_unnamed(info, axis) or info.shape[axis] == 1):
                found.setdefault(axes.order.index(axis) if not self.are_rows else 2 if 0 in found else 0, axis)
            if info.shape[axis] != 1 and axis not in found.values():
                raise self._refusal(access, axis, named)
        time, rows, columns = map(found.get, range(3))
        guessed = tuple(axis for axis in axes.guessed if axis not in named or self.places[named[axis]][0][0] is info)
        are_rows = self.are_rows and axes.time is None
        arranged = replace(axes, time=time, rows=rows, columns=columns, guessed=guessed, are_rows=are_rows)
        return replace(access, axes=arranged), lines

    def _same(self, own_axis: _Axis) -> str | None:
        """Return the name of the samples' dimension that an axis is; None if it is none of them."""
        name = own_axis[0].dimensions[own_axis[1]]
        if _is_unnamed(*own_axis):
            return None
        called = next((one for one in self.places if self.description.is_same_dimension(name, one)), None)
        if called is not None:
            return called if called != name or self._have_one_name(own_axis, self.places[called][0]) else None
        others = (one for one in self.places if one not in own_axis[0].dimensions)
        return next((one for one in others if self._have_equal_coordinates(own_axis, self.places[one][0])), None)

    def _have_one_name(self, one: _Axis, other: _Axis) -> bool:
        """Return whether two axes of the same name are one dimension: each group may have its own."""
        first, second = self._coordinate(one), self._coordinate(other)
        return first is None or second is None or first == second or self._are_equal(first, second, of_one_name=True)

    def _have_equal_coordinates(self, one: _Axis, other: _Axis) -> bool:
        first, second = self._coordinate(one), self._coordinate(other)
        return first is not None and second is not None and first != second and self._are_equal(first, second)

    def _are_equal(self, first: VariableInfo, second: VariableInfo, of_one_name: bool = False) -> bool:
        """Return whether two coordinates have equal values, kind and attributes of `_IN_COMMON`.

        The kind may be unknown only if both have one name.
        """
        pair, role = (first.name, second.name), axis_of_dimension(first)
        if pair not in self._compared:
            alike = (role is not None or of_one_name) and role == axis_of_dimension(second)
            alike = alike and first.shape == second.shape
            alike = alike and first.is_numeric and second.is_numeric
            alike = alike and all(first.attributes.get(key) == second.attributes.get(key) for key in _IN_COMMON)
            if alike:
                values, others = (read_column(self.description.file, each) for each in (first, second))
                alike = np.array_equal(values, others, equal_nan=True)
            self._compared[pair] = alike
        return self._compared[pair]

    def _coordinate(self, own_axis: _Axis) -> VariableInfo | None:
        return coordinate_of(own_axis[0], own_axis[0].dimensions[own_axis[1]], self.description.variables)

    def _refusal(self, access: VariableAccess, axis: int, named: Mapping[int, str]) -> DataError:
        info, pairs = access.info, dict(self.description.same_dimensions)
        name = info.dimensions[axis]
        rest = [other for other in self.places if other not in named.values()]
        for own in (one for one in range(len(info.shape)) if one not in named and not _is_unnamed(info, one)):
            place = access.axes.order.index(own) if own in access.axes.order else None
            alike = [other for other in rest if self._may_be_one((info, own), other)]
            at_place = [other for other in alike if self.places[other][1] == place]
            for other in (at_place or alike)[:1]:
                pairs[info.dimensions[own]] = other
                rest.remove(other)
        position = f"{info.short_name}[{name}=0]" if name else f"{info.short_name}[{':, ' * axis}0]"
        both = ", ".join(f"{one}: {other}" for one, other in pairs.items())
        return DataError(
            f"{self.description.path}: variable '{info.name}' ({info.sizes}) has dimension {name or f'number {axis}'}, "
            f"which samples of '{self.main.name}' lack: they lie along {', '.join(self.places) or 'rows'}; use another "
            f"variable, or one index, as in {position}"
            + (f", or set data.dimensions={{{both}}} if both are the same" if name in pairs else "")
        )

    def _may_be_one(self, own_axis: _Axis, other: str) -> bool:
        """Return whether an axis has the size of a dimension of samples, and is not known to be of another kind."""
        (holder, axis), place = self.places[other]
        own = self._coordinate(own_axis)
        role = None if own is None else axis_of_dimension(own)
        return holder.shape[axis] == own_axis[0].shape[own_axis[1]] and role in (None, KINDS[place])


def sample_dimensions(description: FileDescription, variables: Iterable[VariableAccess]) -> SampleDimensions:
    """Return the dimensions of several variables together, those of the largest first.

    The variables are the targets, or the inputs if there are no targets. For each position in (T, J, I) the largest
    variable with a named dimension there defines it.
    """
    largest_first = sorted(variables, key=lambda one: math.prod(one.shape), reverse=True)
    places: dict[str, tuple[_Axis, int]] = {}
    for one in largest_first:
        taken = {place for _, place in places.values()}
        for place, axis in enumerate(one.axes.order):
            if axis is not None and place not in taken and not _is_unnamed(one.info, axis):
                places.setdefault(one.info.dimensions[axis], ((one.info, axis), place))
    main = largest_first[0]
    is_by_place = any(axis is not None and _is_unnamed(main.info, axis) for axis in main.axes.order)
    are_rows = is_by_place and not description.of_fields and all(map(_is_column, largest_first))
    return SampleDimensions(description, main.info, places, is_by_place, are_rows)


def on_samples(
    description: FileDescription, access: VariableAccess, leading: Iterable[VariableAccess]
) -> VariableAccess | None:  # fmt: skip
    """Return a variable with its axes matched to the dimensions of others; None if it has further dimensions."""
    try:
        return sample_dimensions(description, leading).match(access)[0]
    except DataError:
        return None


def _is_column(access: VariableAccess) -> bool:
    """Return whether an array is (N,) or (N, 1)."""
    sizes = [size for axis, size in enumerate(access.info.shape) if axis not in dict(access.axes.fixed)]
    return len(sizes) == 1 or (len(sizes) == 2 and sizes[1] == 1)


def _is_unnamed(info: VariableInfo, axis: int) -> bool:
    """Return whether an axis has no name of its own: none, one that a library made up, or that of another axis."""
    name = info.dimensions[axis]
    return NO_NAME.fullmatch(name.lower()) is not None or info.dimensions.count(name) > 1
