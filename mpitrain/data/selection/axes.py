"""Which axes of a variable are time, rows and columns, in whatever order and under whatever names.

T  time levels      J  rows      I  columns; arrays are arranged as (T, J, I), 1 where a variable lacks the axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from mpitrain.data.files.variable import Slices, VariableInfo, Variables
from mpitrain.data.selection.cf import (
    COLUMNS,
    LEAD,
    OTHER,
    ROWS,
    TIME,
    axis_along,
    axis_of_dimension,
    find_time,
    probable_axis,
    scalar_time,
)
from mpitrain.data.selection.names import find_places
from mpitrain.errors import DataError

KINDS = (TIME, ROWS, COLUMNS)
CELLS = "cells"
_NAMES = {
    TIME: "time t times nt ntime date day month year record step ocean_time time_counter valid_time",
    ROWS: "nj j y ny lat lats latitude nlat row rows yc yh yq jm south_north grid_yt yt_ocean yu_ocean nlats",
    COLUMNS: "ni i x nx lon lons longitude nlon column columns col cols xc xh xq im west_east grid_xt xt_ocean "
    "xu_ocean nlons",
    CELLS: "ncell ncells cell cells node nodes point points ncol nedges nele nface nfaces nmesh2_face "
    "nschism_hgrid_node nschism_hgrid_face nschism_hgrid_side lndgrid gridcell grid_size nod2",
    OTHER: "z lev level levels depth height plev nz zl ncat nc nkice nks category member ensemble bnds nv nvertices",
}
_FEWEST_WITH_LEVELS = 3  # axes: times, levels, cells
_CELL_NAMES = frozenset(_NAMES[CELLS].split())
_NO_NAME = re.compile(r"(phony_)?dim_?\d+|")  # what libraries call a dimension that has none
_KIND_OF_NAME = {name: COLUMNS if kind == CELLS else kind for kind, names in _NAMES.items() for name in names.split()}


@dataclass(frozen=True)
class Axes:
    """Which axis of a variable is time, rows, columns; None for one that it lacks.

    `fixed` are further axes and the position taken along each; all others have size 1. `guessed` are those of the
    three that neither the file nor a usual name tells: only their place among the others.
    """

    time: int | None
    rows: int | None
    columns: int | None
    fixed: tuple[tuple[int, int], ...] = ()
    guessed: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int | None, int | None, int | None]:
        """The three, as they are arranged."""
        return self.time, self.rows, self.columns

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (T, J, I) of a variable or a chunk of that shape."""
        time, rows, columns = (1 if axis is None else shape[axis] for axis in self.order)
        return time, rows, columns

    def slices(
        self, shape: tuple[int, ...], time: slice, rows: slice, spans: Mapping[int, tuple[int, int]] | None = None
    ) -> Slices:
        """Return what to read for some time levels and rows of a variable of that shape; a size of 1 stands for all.

        `spans` are the first position and the last + 1 along each fixed axis, by default this one's own alone.
        """
        parts = [slice(None)] * len(shape)
        for axis, position in self.fixed:
            parts[axis] = slice(*(spans or {}).get(axis, (position, position + 1)))
        for own, part in ((self.time, time), (self.rows, rows)):
            if own is not None and shape[own] > 1:
                parts[own] = part
        return tuple(parts)

    def arrange(self, stored: npt.NDArray[Any], spans: Mapping[int, tuple[int, int]] | None = None) -> npt.NDArray[Any]:
        """Return the values, read by `slices`, as (T, J, I), a view where the order allows it."""
        if self.order == (0, 1, 2) and stored.ndim == 3:
            return stored
        own = [slice(None)] * stored.ndim
        for axis, position in self.fixed:
            first = (spans or {}).get(axis, (position, position + 1))[0]
            own[axis] = slice(position - first, position - first + 1)
        stored = stored[tuple(own)]
        present = [axis for axis in self.order if axis is not None]
        rest = [axis for axis in range(stored.ndim) if axis not in present]
        return stored.transpose([*present, *rest]).reshape(self.arranged_shape(stored.shape))


def find_axes(
    info: VariableInfo, variables: Variables, only_axis: str = COLUMNS,
    fixed: Mapping[int, int] | None = None, time_dimension: str | None = None,
) -> Axes:  # fmt: skip
    """Recognise the axes of a variable among the `variables` of its file.

    In this order: `time_dimension`, where it is given; coordinate variables (CF `axis`, `standard_name`, `units`),
    usual names of dimensions, the dimensions along which latitude and longitude lie, an unlimited one as time, and for
    what is left the usual order time, rows, columns. `only_axis` is what a lone unknown axis is. `fixed` are axes that
    are none of these, with the position that is taken along each.

    Raises DataError for a further axis that is longer than 1, and for two axes that say they are the same.
    """
    kinds = [OTHER if axis in (fixed or {}) else kind for axis, kind in enumerate(_kinds_of(info, variables))]
    if kinds == [None] and info.dimensions == ("",) and find_time("", info, variables) is not None:
        kinds = [TIME]  # rows of a table with dates
    if time_dimension in info.dimensions:
        kinds[info.dimensions.index(str(time_dimension))] = TIME
    if kinds == [OTHER] and not fixed:  # samples one after the other, each at a depth of its own
        kinds = [None]
    _refuse_doubles(info, kinds)
    if TIME not in kinds and scalar_time(info, variables) is None:
        growing = [axis for axis in sorted(info.unlimited) if kinds[axis] is None]
        kinds = [TIME if axis in growing[:1] else kind for axis, kind in enumerate(kinds)]
    kinds = _with_levels_beside_cells(info, kinds, variables)
    found = _axes(info, _assign_rest(info, list(kinds), only_axis), fixed or {})
    return replace(found, guessed=_guessed(info, kinds, found))


def further_axes(info: VariableInfo, variables: Variables) -> list[int]:
    """Return the axes that are neither time nor rows nor columns, whatever their sizes; a lone one is of samples."""
    if len(info.shape) == 1:
        return []
    kinds = _with_levels_beside_cells(info, _kinds_of(info, variables), variables)
    num_unknown = max(0, kinds.count(None) - sum(kind not in kinds for kind in KINDS))
    unknown = [axis for axis, kind in enumerate(kinds) if kind is None]
    return [axis for axis, kind in enumerate(kinds) if kind == OTHER or axis in unknown[:num_unknown]]


def refuse_other_levels(info: VariableInfo, dimensions: tuple[str, ...], variables: Variables) -> None:
    """Raise DataError for a variable along levels alone, such as hybrid coefficients, where samples lie otherwise."""
    if len(info.shape) == 1 and info.dimensions != dimensions and _kinds_of(info, variables) == [OTHER]:
        _axes(info, [OTHER], {})


def dimensions_of_space(info: VariableInfo, variables: Variables) -> set[str]:
    """Return the dimensions of a variable that neither their own variable nor a usual name calls time or a level."""
    kinds = [_kind_of(info, axis, variables) for axis in range(len(info.shape))]
    return {name for name, kind in zip(info.dimensions, kinds, strict=True) if name and kind not in (TIME, LEAD, OTHER)}


def _kinds_of(info: VariableInfo, variables: Variables) -> list[str | None]:
    kinds = [_kind_of(info, axis, variables) for axis in range(len(info.shape))]
    kinds = _with_probable(info, _with_leads(info, kinds, variables), variables)
    is_cell = [name.lower() in _CELL_NAMES for name in info.dimensions]
    if any(kind in (ROWS, COLUMNS) and not cell for kind, cell in zip(kinds, is_cell, strict=True)):
        kinds = [OTHER if cell else kind for kind, cell in zip(kinds, is_cell, strict=True)]
    return _with_places(info, kinds, variables) if None in kinds else kinds


def _with_leads(info: VariableInfo, kinds: list[str | None], variables: Variables) -> list[str | None]:
    """Take the lead of a forecast for time where no other axis is, and a time is known along it."""
    if LEAD not in kinds:
        return kinds
    axis = kinds.index(LEAD)
    is_time = TIME not in kinds and find_time(info.dimensions[axis], info, variables) is not None
    kinds = [TIME if is_time and own == axis else kind for own, kind in enumerate(kinds)]
    return [OTHER if kind == LEAD else kind for kind in kinds]


def _with_probable(info: VariableInfo, kinds: list[str | None], variables: Variables) -> list[str | None]:
    """Name unknown axes by weaker signs; of two axes and fewer they may well be rows and columns of samples."""
    if None not in kinds or len(kinds) < _FEWEST_WITH_LEVELS:
        return kinds
    named = list(kinds)
    for axis, kind in enumerate(kinds):
        own = coordinate_of(info, info.dimensions[axis], variables) if kind is None and info.dimensions[axis] else None
        probable = None if own is None else probable_axis(own)
        named[axis] = probable if probable == OTHER or (probable in KINDS and probable not in named) else kind
    return named


def _with_places(info: VariableInfo, kinds: list[str | None], variables: Variables) -> list[str | None]:
    """Name the unknown axes along which latitude and longitude lie together: rows and columns, or cells in no order.

    An unlimited dimension may be any of these. Cells each of which has a time of its own are time levels.
    """
    unknown = {info.dimensions[axis]: axis for axis, kind in enumerate(kinds) if kind is None}
    places = find_places(info, variables)
    if places is None:
        found = {name: kind for name in unknown if name and (kind := axis_along(name, variables)) is not None}
    else:
        space = [name for name in places[0].dimensions if kinds[info.dimensions.index(name)] not in (TIME, OTHER)]
        has_times = len(space) == 1 and find_time(space[0], info, variables) is not None
        found = {space[0]: TIME} if has_times else dict(zip(reversed(space), (COLUMNS, ROWS), strict=False))
    named = {axis: found[name] for name, axis in unknown.items() if name in found and found[name] not in kinds}
    return [named.get(axis, kind) for axis, kind in enumerate(kinds)]


def _with_levels_beside_cells(
    info: VariableInfo, kinds: list[str | None], variables: Variables
) -> list[str | None]:  # fmt: skip
    """Take unknown axes for levels or the like where the others are cells in no order, which have no rows.

    A lone one beside the cells may be of times or reports.
    """
    if None not in kinds or len(kinds) < _FEWEST_WITH_LEVELS or not _has_cells(info, kinds, variables):
        return kinds
    may_be_time = info.unlimited if TIME not in kinds else frozenset()
    named = [axis for axis, name in enumerate(info.dimensions) if name and axis not in may_be_time]
    return [OTHER if kind is None and axis in named else kind for axis, kind in enumerate(kinds)]


def _has_cells(info: VariableInfo, kinds: list[str | None], variables: Variables) -> bool:
    if any(name.lower() in _CELL_NAMES and kinds[axis] == COLUMNS for axis, name in enumerate(info.dimensions)):
        return True
    places = find_places(info, variables)
    return places is not None and len(places[0].dimensions) == 1 and kinds.count(COLUMNS) == 1 and ROWS not in kinds


def _guessed(info: VariableInfo, kinds: list[str | None], found: Axes) -> tuple[int, ...]:
    """Return the axes whose place alone tells what they are, where there is more than one that it could be."""
    of_space = [axis for axis in (found.rows, found.columns) if axis is not None and info.shape[axis] > 1]
    return tuple(
        axis for axis in found.order
        if axis is not None and kinds[axis] is None and len(of_space) > 1 and info.shape[axis] > 1
        and not _NO_NAME.fullmatch(info.dimensions[axis].lower())
    )  # fmt: skip


def _kind_of(info: VariableInfo, axis: int, variables: Mapping[str, VariableInfo]) -> str | None:
    name = info.dimensions[axis]
    if not name:
        return None
    coordinate = coordinate_of(info, name, variables)
    kind = axis_of_dimension(coordinate) if coordinate is not None else None
    return kind or _KIND_OF_NAME.get(name.lower())


def coordinate_of(info: VariableInfo, name: str, variables: Mapping[str, VariableInfo]) -> VariableInfo | None:
    """Return the coordinate variable of a dimension, in the variable's group or one above it."""
    group = info.name.rpartition("/")[0]
    while True:
        found = variables.get(f"{group}/{name}" if group else name)
        if found is not None and len(found.shape) == 1:
            return found
        if not group:
            return None
        group = group.rpartition("/")[0]


def _refuse_doubles(info: VariableInfo, kinds: list[str | None]) -> None:
    for kind in KINDS:
        if kinds.count(kind) > 1:
            names = [info.dimensions[axis] for axis, found in enumerate(kinds) if found == kind]
            raise DataError(
                f"variable '{info.name}' ({info.sizes}): dimensions {' and '.join(names)} both are {kind}; "
                "rename one, or give its coordinate variable the attribute axis (T, Y or X)"
            )


def _assign_rest(info: VariableInfo, kinds: list[str | None], only_axis: str) -> list[str | None]:
    unknown = [axis for axis, kind in enumerate(kinds) if kind is None]
    free = [kind for kind in KINDS if kind not in kinds]
    if len(unknown) > len(free):
        unknown = [axis for axis in unknown if info.shape[axis] != 1]
    if len(unknown) == 1 and all(kind == OTHER for kind in kinds if kind is not None):
        # Samples one after the other, of a file that names no dimension, are cut into chunks as rows are.
        free = [only_axis if info.dimensions[unknown[0]] else ROWS]
    for axis, kind in zip(reversed(unknown), reversed(free), strict=False):
        kinds[axis] = kind
    return kinds


def _axes(info: VariableInfo, kinds: list[str | None], fixed: Mapping[int, int]) -> Axes:
    for axis, kind in enumerate(kinds):
        if kind not in KINDS and info.shape[axis] != 1 and axis not in fixed:
            name = info.dimensions[axis]
            shown_name = name or f"number {axis}"
            example = f"{name}=" if name else ":, "
            raise DataError(
                f"variable '{info.name}' ({info.sizes}): dimension {shown_name} of size {info.shape[axis]} is neither "
                f"time nor rows nor columns; take one level, as in {info.short_name}[{example}0], or all as in "
                f"{info.short_name}[{example}:]"
            )
    time, rows, columns = (kinds.index(kind) if kind in kinds else None for kind in KINDS)
    return Axes(time, rows, columns, tuple(sorted(fixed.items())))
