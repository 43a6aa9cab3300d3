"""Recognition of the time, row and column axes of a variable, in any order and with any names.

T  time levels      J  rows      I  columns; arrays are arranged as (T, J, I), 1 where a variable lacks the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from mpitrain.data.describe.cf import COLUMNS, OTHER, ROWS, TIME, Role, find_time, reason_of, scalar_time
from mpitrain.data.describe.roles import KINDS, NO_NAME, Roles, roles_of, with_levels_beside_cells
from mpitrain.data.files.variable import Slices, VariableInfo, Variables
from mpitrain.errors import DataError


@dataclass(frozen=True)
class Axes:
    """The time, row and column axes of a variable; None for an axis that it lacks.

    `fixed` are further axes and the position selected along each; all others have size 1. `guessed` are those of the
    three axes that were assumed from their position only. `reasons` (one for each axis) are the evidence. With
    `are_rows` the time levels are the rows of a table without dates.
    """

    time: int | None
    rows: int | None
    columns: int | None
    fixed: tuple[tuple[int, int], ...] = ()
    guessed: tuple[int, ...] = ()
    reasons: tuple[str, ...] = field(default=(), compare=False)
    are_rows: bool = False

    @property
    def order(self) -> tuple[int | None, int | None, int | None]:
        """The time, row and column axes, in this order."""
        return self.time, self.rows, self.columns

    def arranged_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return (T, J, I) for a variable or chunk of shape `shape`."""
        time, rows, columns = (1 if axis is None else shape[axis] for axis in self.order)
        return time, rows, columns

    def slices(
        self, shape: tuple[int, ...], time: slice, rows: slice, spans: Mapping[int, tuple[int, int]] | None = None
    ) -> Slices:
        """Return the slices that read some time levels and rows of a variable; an axis of size 1 is always read.

        `spans` are start and stop along fixed axes; the default is the fixed position only.
        """
        parts = [slice(None)] * len(shape)
        for axis, position in self.fixed:
            parts[axis] = slice(*(spans or {}).get(axis, (position, position + 1)))
        for own, part in ((self.time, time), (self.rows, rows)):
            if own is not None and shape[own] > 1:
                parts[own] = part
        return tuple(parts)

    def arrange(self, stored: npt.NDArray[Any], spans: Mapping[int, tuple[int, int]] | None = None) -> npt.NDArray[Any]:
        """Return values that were read by `slices` as (T, J, I), a view if possible."""
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

    The evidence is, in this order: `time_dimension`, if given; coordinate variables (CF `axis`, `standard_name`,
    `units`); usual names of dimensions; the dimensions of latitude and longitude; an unlimited dimension as time; and
    for the remaining axes the usual order time, rows, columns. `only_axis` is the role of a single unknown axis.
    `fixed` maps axes with none of these roles to the position selected along each.

    Raises DataError for a further axis longer than 1, and for two axes with evidence for the same role.
    """
    at_level = Role(OTHER, "named in the settings")
    kinds = [at_level if axis in (fixed or {}) else kind for axis, kind in enumerate(roles_of(info, variables))]
    dates = find_time("", info, variables) if kinds == [None] and info.dimensions == ("",) else None
    if dates is not None:
        kinds = [Role(TIME, f"rows with {dates.short_name}")]
    if time_dimension in info.dimensions:
        kinds[info.dimensions.index(str(time_dimension))] = Role(TIME, "data.coordinates")
    if kinds == [OTHER] and not fixed:  # a list of samples, each with its own depth
        kinds = [None]
    _refuse_doubles(info, kinds)
    if TIME not in kinds and scalar_time(info, variables) is None:
        growing = [axis for axis in sorted(info.unlimited) if kinds[axis] is None]
        kinds = [Role(TIME, "unlimited") if axis in growing[:1] else kind for axis, kind in enumerate(kinds)]
    kinds = with_levels_beside_cells(info, kinds, variables)
    every = _assign_rest(info, list(kinds), only_axis)
    found = _axes(info, every, fixed or {})
    reasons = tuple(map(reason_of, every))
    return replace(found, guessed=_guessed(info, kinds, found), reasons=reasons)


def _guessed(info: VariableInfo, kinds: Roles, found: Axes) -> tuple[int, ...]:
    """Return the axes whose role is assumed from their position only, if another role is possible."""
    of_space = [axis for axis in (found.rows, found.columns) if axis is not None and info.shape[axis] > 1]
    return tuple(
        axis for axis in found.order
        if axis is not None and kinds[axis] is None and len(of_space) > 1 and info.shape[axis] > 1
        and not NO_NAME.fullmatch(info.dimensions[axis].lower())
    )  # fmt: skip


def _refuse_doubles(info: VariableInfo, kinds: Roles) -> None:
    for kind in KINDS:
        doubles = [(axis, role) for axis, role in enumerate(kinds) if role == kind]
        if len(doubles) > 1:
            names = [f"{info.dimensions[axis]} ({reason_of(role)})" for axis, role in doubles]
            raise DataError(
                f"variable '{info.name}' ({info.sizes}): dimensions {' and '.join(names)} are both {kind}; "
                "rename one, or give its coordinate variable the attribute axis (T, Y or X)"
            )


def _assign_rest(info: VariableInfo, kinds: Roles, only_axis: str) -> Roles:
    unknown = [axis for axis, kind in enumerate(kinds) if kind is None]
    free = [kind for kind in KINDS if kind not in kinds]
    if len(unknown) > len(free):
        unknown = [axis for axis in unknown if info.shape[axis] != 1]
    if len(unknown) == 1 and all(kind == OTHER for kind in kinds if kind is not None):
        # A list of samples in a file without dimension names is split into chunks like rows.
        free = [only_axis if info.dimensions[unknown[0]] else ROWS]
    for axis, kind in zip(reversed(unknown), reversed(free), strict=False):
        kinds[axis] = Role(kind, "its position among the dimensions")
    return kinds


def _axes(info: VariableInfo, kinds: Roles, fixed: Mapping[int, int]) -> Axes:
    for axis, kind in enumerate(kinds):
        if kind not in KINDS and info.shape[axis] != 1 and axis not in fixed:
            name = info.dimensions[axis]
            shown_name = name or f"number {axis}"
            reason = f" ({reason_of(kind)})" if kind is not None else ""
            example = f"{name}=" if name else ":, "
            raise DataError(
                f"variable '{info.name}' ({info.sizes}): dimension {shown_name} of size {info.shape[axis]} is neither "
                f"time nor rows nor columns{reason}; take one level, as in {info.short_name}[{example}0], or all as in "
                f"{info.short_name}[{example}:]"
            )
    time, rows, columns = (kinds.index(kind) if kind in kinds else None for kind in KINDS)
    return Axes(time, rows, columns, tuple(sorted(fixed.items())))
