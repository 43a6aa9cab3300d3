"""Resolution of references in a file: the positions along each axis, and one name for each level of a range."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.roles import coordinate_of, further_axes
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.expressions.reference import Index, Reference
from mpitrain.errors import DataError

# Relative tolerance for levels: settings give numbers with fewer digits than files hold.
_NEAR = 1e-3
_MOST_SHOWN = 12


def find_positions(reference: Reference, info: VariableInfo, file: FieldFile) -> dict[int, list[int]]:
    """Return the positions along each axis of `info` that the reference restricts, by axis.

    A named index selects by the values of the coordinate variable, or by position if there is none; an unnamed index
    selects by position. Raises DataError if the file has no such dimension or level.
    """
    found: dict[int, list[int]] = {}
    unnamed = [index for index in reference.indices if index.dimension is None]
    for axis, index in zip(_axes_in_order(info, len(unnamed), file), unnamed, strict=True):
        # A leading ":" stands for the axis along which samples lie, as in features[:, 0].
        if not (axis == 0 and index == Index(None)):
            found[axis] = _by_position(index, info, axis, file)
    for index in reference.indices:
        if index.dimension is not None:
            axis, values = _named_axis(index.dimension, info, file)
            found[axis] = _by_position(index, info, axis, file) if values is None else _by_value(index, values, file)
    return found


def expand(reference: Reference, text: str, info: VariableInfo, file: FieldFile) -> list[str]:
    """Return one text for each level that a reference selects, in order; its own `text` if it selects a single one."""
    indices = reference.indices
    if len(indices) == len(info.shape) > 1 and indices[0] == Index(None):
        indices = indices[1:]  # without the axis of the samples, as in features[:, 0]
    if not any(index.is_run for index in indices):
        return [text]
    positions = find_positions(reference, info, file)
    labels = [labels_of(axis, found, info, file) for axis, found in positions.items()]
    lag = [f"{'row' if reference.by_row else 'time'}{reference.lag:+d}"] if reference.lag else []
    name = reference.name if reference.name.isidentifier() else f'var("{reference.name}")'
    if not any(info.dimensions):
        return [f"{name}[{', '.join([':', *one])}]" for one in itertools.product(*labels)]
    return [f"{name}[{', '.join([*one, *lag])}]" for one in itertools.product(*labels)]


def labels_of(axis: int, positions: Sequence[int], info: VariableInfo, file: FieldFile) -> list[str]:
    """Return positions along an axis as settings spell them: by coordinate values if there are any, else by index."""
    dimension = info.dimensions[axis]
    if not dimension:
        return list(map(str, positions))
    values = _values_along(info, axis, file)
    shown = positions if values is None else [format(float(values[position]), ".7g") for position in positions]
    return [f"{dimension}={one}" for one in shown]


def _axes_in_order(info: VariableInfo, count: int, file: FieldFile) -> list[int]:
    """Return the axes to which unnamed indices apply: all of them, or all except time, rows and columns."""
    if count == len(info.shape) or count == 0:
        return list(range(count))
    further = further_axes(info, file.variables)
    if len(further) == count:
        return further
    raise DataError(
        f"{file.path}: variable '{info.name}' has the dimensions ({info.sizes}): {count} unnamed indices fit neither "
        f"all of them nor the {len(further)} other than time, rows and columns; name the dimensions, as in [z=0]"
    )


def _named_axis(name: str, info: VariableInfo, file: FieldFile) -> tuple[int, npt.NDArray[np.float64] | None]:
    """Return the axis called `name`, and its coordinate values, if any.

    `name` is that of the dimension, of its coordinate variable, or the coordinate's standard_name or long_name.
    """
    for axis, dimension in enumerate(info.dimensions):
        if dimension == name:
            return axis, _values_along(info, axis, file)
    variable = file.variables.get(name)
    for axis, dimension in enumerate(info.dimensions):
        if variable is not None and variable.dimensions == (dimension,) and dimension:
            return axis, read_column(file, variable)
        coordinate = coordinate_of(info, dimension, file.variables) if dimension else None
        if coordinate is not None and name in (coordinate.text("standard_name"), coordinate.text("long_name")):
            return axis, read_column(file, coordinate)
    raise DataError(
        f"{file.path}: variable '{info.name}' has the dimensions ({info.sizes}): none is called '{name}'; name one of "
        "them, or its coordinate variable"
    )


def _values_along(info: VariableInfo, axis: int, file: FieldFile) -> npt.NDArray[np.float64] | None:
    coordinate = coordinate_of(info, info.dimensions[axis], file.variables)
    return None if coordinate is None or not coordinate.is_numeric else read_column(file, coordinate)


def _by_position(index: Index, info: VariableInfo, axis: int, file: FieldFile) -> list[int]:
    size = info.shape[axis]
    if index.first is None:
        found = list(range(*slice(index.start, index.stop).indices(size)))
    else:
        wanted = range(int(index.first), int(index.last or index.first) + 1)
        is_whole = float(index.first).is_integer()
        found = [position for position in wanted if is_whole and 0 <= position < size]
    if not found:
        name = info.dimensions[axis] or f"number {axis}"
        raise DataError(
            f"{file.path}: variable '{info.name}' has {size} positions along {name}, 0 to {size - 1}: "
            f"[{_wanted(index)}] selects none of them"
        )
    return found


def _by_value(index: Index, values: npt.NDArray[np.float64], file: FieldFile) -> list[int]:
    if index.first is None or index.last is None:
        return list(range(*slice(index.start, index.stop).indices(len(values))))
    if index.is_run:
        low, high = min(index.first, index.last), max(index.first, index.last)
        found = np.flatnonzero((values >= low) & (values <= high)).tolist()
    else:
        nearest = int(np.nanargmin(np.abs(values - index.first)))
        is_it = abs(values[nearest] - index.first) <= _NEAR * max(abs(index.first), 1e-6)
        found = [nearest] if is_it else []
    if not found:
        shown_values = ", ".join(f"{value:.7g}" for value in values[:_MOST_SHOWN])
        more = f" and {len(values) - _MOST_SHOWN} more" if len(values) > _MOST_SHOWN else ""
        raise DataError(
            f"{file.path}: no level {index.dimension}={_wanted(index)}: the values are {shown_values}{more}; give one "
            "of these, or an unnamed position, as in [0]"
        )
    return found


def _wanted(index: Index) -> str:
    if index.first is None:
        return f"{'' if index.start is None else index.start}:{'' if index.stop is None else index.stop}"
    return f"{index.first:.7g}" if not index.is_run else f"{index.first:.7g}..{index.last:.7g}"


def spans_of(fixed: Iterable[tuple[tuple[int, int], ...]]) -> dict[int, tuple[int, int]]:
    """Return for each fixed axis the first selected position and the last + 1, over all references."""
    spans: dict[int, tuple[int, int]] = {}
    for places in fixed:
        for axis, position in places:
            first, stop = spans.get(axis, (position, position + 1))
            spans[axis] = (min(first, position), max(stop, position + 1))
    return spans
