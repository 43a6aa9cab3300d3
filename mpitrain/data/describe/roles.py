"""Roles of the dimensions of a variable, and the evidence for them.

In order of strength: the attributes of the dimension's coordinate variable; a usual name; units of pressure or
`long_name`, for variables of at least three dimensions; latitude and longitude that both lie along the dimension; other
coordinates along it. A role without evidence is None; the caller decides on it (`mpitrain.data.selection.axes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mpitrain.data.describe.cf import (
    COLUMNS,
    LEAD,
    OTHER,
    ROWS,
    TIME,
    Role,
    axis_along,
    axis_of_dimension,
    find_time,
    probable_axis,
    reason_of,
)
from mpitrain.data.describe.names import coordinate_pairs
from mpitrain.data.files.variable import VariableInfo, Variables

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
_FEWEST_WITH_LEVELS = 3  # axes: times, levels and cells
_CELL_NAMES = frozenset(_NAMES[CELLS].split())
NO_NAME = re.compile(r"(phony_|fake)?dim_?\d+|_(anonymous|z)_?dim_?\d+|")
"""Names that libraries give to dimensions without a name."""
_ROLE_OF_NAME = {
    name: Role(COLUMNS if kind == CELLS else kind, "its name")
    for kind, names in _NAMES.items()
    for name in names.split()
}
Roles = list[str | None]


def further_axes(info: VariableInfo, variables: Variables) -> list[int]:
    """Return the axes that are neither time nor rows nor columns, of any size.

    [] for a variable of one axis, which is the axis of samples.
    """
    if len(info.shape) == 1:
        return []
    kinds = with_levels_beside_cells(info, roles_of(info, variables), variables)
    num_unknown = max(0, kinds.count(None) - sum(kind not in kinds for kind in KINDS))
    unknown = [axis for axis, kind in enumerate(kinds) if kind is None]
    return [axis for axis, kind in enumerate(kinds) if kind == OTHER or axis in unknown[:num_unknown]]


def dimensions_of_space(info: VariableInfo, variables: Variables) -> set[str]:
    """Return the dimensions of a variable that are neither time nor levels by coordinate variable or usual name."""
    kinds = [_role_of(info, axis, variables) for axis in range(len(info.shape))]
    return {name for name, kind in zip(info.dimensions, kinds, strict=True) if name and kind not in (TIME, LEAD, OTHER)}


def roles_of(info: VariableInfo, variables: Variables) -> Roles:
    """Return the role of each dimension of a variable, `OTHER` for levels and similar axes, None without evidence."""
    kinds = [_role_of(info, axis, variables) for axis in range(len(info.shape))]
    kinds = _with_probable(info, _with_leads(info, kinds, variables), variables)
    is_cell = [name.lower() in _CELL_NAMES for name in info.dimensions]
    if any(kind in (ROWS, COLUMNS) and not cell for kind, cell in zip(kinds, is_cell, strict=True)):
        further = Role(OTHER, "cells beside rows or columns")
        kinds = [further if cell else kind for kind, cell in zip(kinds, is_cell, strict=True)]
    return _with_places(info, kinds, variables) if None in kinds else kinds


def _with_leads(info: VariableInfo, kinds: Roles, variables: Variables) -> Roles:
    """Use the forecast-period axis as time if there is no other time axis and a valid time lies along it."""
    if LEAD not in kinds:
        return kinds
    axis = kinds.index(LEAD)
    time = find_time(info.dimensions[axis], info, variables) if TIME not in kinds else None
    if time is not None:
        kinds = [Role(TIME, f"{time.short_name} along it") if own == axis else kind for own, kind in enumerate(kinds)]
    return [Role(OTHER, reason_of(kind)) if kind == LEAD else kind for kind in kinds]


def _with_probable(info: VariableInfo, kinds: Roles, variables: Variables) -> Roles:
    """Set unknown roles by `probable_axis`, unless there are fewer than three axes, which may be plain samples."""
    if None not in kinds or len(kinds) < _FEWEST_WITH_LEVELS:
        return kinds
    named = list(kinds)
    for axis, kind in enumerate(kinds):
        own = coordinate_of(info, info.dimensions[axis], variables) if kind is None and info.dimensions[axis] else None
        probable = None if own is None else probable_axis(own)
        named[axis] = probable if probable == OTHER or (probable in KINDS and probable not in named) else kind
    return named


def _with_places(info: VariableInfo, kinds: Roles, variables: Variables) -> Roles:
    """Set unknown roles of axes along which latitude and longitude lie: rows and columns, or unstructured cells.

    An unlimited dimension may be any of these. Cells with a time each become time levels.
    """
    unknown = {info.dimensions[axis]: axis for axis, kind in enumerate(kinds) if kind is None}
    places = next(iter(coordinate_pairs(info, variables)), None)
    if places is None:
        found = {name: kind for name in unknown if name and (kind := axis_along(name, variables)) is not None}
    else:
        space = [name for name in places[0].dimensions if kinds[info.dimensions.index(name)] not in (TIME, OTHER)]
        has_times = len(space) == 1 and find_time(space[0], info, variables) is not None
        reason = f"{places[0].short_name} and {places[1].short_name} lie along it{', with times' if has_times else ''}"
        found = {
            name: Role(TIME if has_times else role, reason)
            for name, role in zip(reversed(space), (COLUMNS, ROWS), strict=False)
        }
    named = {axis: found[name] for name, axis in unknown.items() if name in found and found[name] not in kinds}
    return [named.get(axis, kind) for axis, kind in enumerate(kinds)]


def with_levels_beside_cells(info: VariableInfo, kinds: Roles, variables: Variables) -> Roles:
    """Set unknown axes beside unstructured cells, which have no rows, to `OTHER`, such as levels.

    Axes that may be times are unchanged: in variables of two axes, and unlimited axes if no other axis is time.
    """
    if None not in kinds or len(kinds) < _FEWEST_WITH_LEVELS or not _has_cells(info, kinds, variables):
        return kinds
    may_be_time = info.unlimited if TIME not in kinds else frozenset()
    named = [axis for axis, name in enumerate(info.dimensions) if name and axis not in may_be_time]
    further = Role(OTHER, "beside unstructured cells")
    return [further if kind is None and axis in named else kind for axis, kind in enumerate(kinds)]


def _has_cells(info: VariableInfo, kinds: Roles, variables: Variables) -> bool:
    if any(name.lower() in _CELL_NAMES and kinds[axis] == COLUMNS for axis, name in enumerate(info.dimensions)):
        return True
    places = next(iter(coordinate_pairs(info, variables)), None)
    return places is not None and len(places[0].dimensions) == 1 and kinds.count(COLUMNS) == 1 and ROWS not in kinds


def _role_of(info: VariableInfo, axis: int, variables: Mapping[str, VariableInfo]) -> str | None:
    name = info.dimensions[axis]
    if not name:
        return None
    coordinate = coordinate_of(info, name, variables)
    kind = axis_of_dimension(coordinate) if coordinate is not None else None
    return kind or _ROLE_OF_NAME.get(name.lower())


def coordinate_of(info: VariableInfo, name: str, variables: Mapping[str, VariableInfo]) -> VariableInfo | None:
    """Return the coordinate variable of a dimension, in the group of `info` or a parent group; None without one."""
    group = info.name.rpartition("/")[0]
    while True:
        found = variables.get(f"{group}/{name}" if group else name)
        if found is not None and found.dimensions == (name,):
            return found
        if not group:
            return None
        group = group.rpartition("/")[0]
