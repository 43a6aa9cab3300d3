"""Division of a grid into chunks that are read at once, along the blocks in which the file is stored.

T  time levels      J  rows      I  columns
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mpitrain.data.describe.axes import Axes
from mpitrain.data.files.variable import VariableInfo


@dataclass(frozen=True)
class SampleChunk:
    """A part of one file: time levels [time_start, time_stop), rows [row_start, row_stop), all columns.

    For a table of samples, the rows are the samples.
    """

    file: int
    time_start: int
    time_stop: int
    row_start: int
    row_stop: int


@dataclass(frozen=True)
class ChunkUnit:
    """The smallest steps along time and rows for which every stored block lies in one chunk."""

    times: int
    rows: int


def common_unit(variables: Iterable[tuple[VariableInfo, Axes]], num_times: int, num_rows: int) -> ChunkUnit:
    """Return the unit of variables that are read together: the least common multiple of their blocks."""
    times, rows = 1, 1
    for info, axes in variables:
        times = min(math.lcm(times, _block_length(info, axes, axes.time)), num_times)
        rows = min(math.lcm(rows, _block_length(info, axes, axes.rows)), num_rows)
    return ChunkUnit(times, rows)


def plan_parts(
    num_times: int, rows: tuple[int, int], num_columns: int, unit: ChunkUnit, target_points: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (time_start, time_stop, row_start, row_stop) of chunks of about `target_points` points, by time, then rows.

    Chunks have all rows if at least `unit.times` whole time levels fit; otherwise these levels are divided along rows.
    `rows` are the first row that is needed and the last + 1.
    """
    first_row, last_row = rows
    if first_row >= last_row:
        return
    points_a_level = max(1, (last_row - first_row) * num_columns)
    step = max(1, target_points // (points_a_level * unit.times)) * unit.times
    row_step = num_rows = max(1, last_row)
    if points_a_level * unit.times > target_points:
        row_step = max(1, target_points // (num_columns * unit.times * unit.rows)) * unit.rows
    for time in range(0, num_times, step):
        # Cuts are at multiples of the step from row 0, wherever the needed rows begin.
        for row in range(first_row // row_step * row_step, num_rows, row_step):
            yield time, min(time + step, num_times), max(row, first_row), min(row + row_step, last_row)


def _block_length(info: VariableInfo, axes: Axes, axis: int | None) -> int:
    if axis is None or info.shape[axis] <= 1:
        return 1
    if info.chunk_shape is not None:
        return min(info.chunk_shape[axis], info.shape[axis])
    # With time as the last axis, the values of one level lie far apart: reading a level would read the whole file.
    is_fastest = axis == axes.time and axis == len(info.shape) - 1 and not axes.are_rows
    return info.shape[axis] if is_fastest else 1
