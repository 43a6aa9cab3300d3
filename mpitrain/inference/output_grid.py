"""Arrange the predictions for points of a grid on that grid, with its dimensions and coordinates.

T  time levels   J, I  rows and columns, or one row of unordered cells   N  samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import Coordinates, SampleSource
from mpitrain.data.describe.cf import COLUMNS, ROWS, TIME
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import UserError
from mpitrain.inference.netcdf_output import Names, OutputVariable
from mpitrain.inference.other_formats import Layout as Layout

Array = npt.NDArray[Any]
_USUAL_NAMES = {TIME: "time", ROWS: "row", COLUMNS: "column"}
_AXES = {TIME: "T", "lat": "Y", "lon": "X"}


@dataclass(frozen=True)
class OutputGrid:
    """Grid of a prediction file: `dimensions` by kind (time, rows, columns), without those that the data lacks.

    `coordinates`: its latitude, longitude and time variables by their names in `Coordinates`.
    """

    source: SampleSource
    dimensions: Mapping[str, str]
    coordinates: Mapping[str, OutputVariable]

    @property
    def stored_dimensions(self) -> dict[str, str]:
        """The names of the grid's dimensions by their names in the data's first file."""
        found = {}
        for access in (self.source.files[0].variables[name] for name in self.source.leading_references):
            for kind, axis in zip((TIME, ROWS, COLUMNS), access.axes.order, strict=True):
                if kind in self.dimensions and axis is not None and access.info.dimensions[axis]:
                    found[access.info.dimensions[axis]] = self.dimensions[kind]
        return found

    @property
    def auxiliary(self) -> list[str]:
        """The names of the auxiliary coordinates: those that are not a dimension's coordinate variable."""
        return [one.name for one in self.coordinates.values() if one.dimensions != (one.name,)]

    @property
    def has_time_levels(self) -> bool:
        """Whether the first dimension is time."""
        return TIME in self.dimensions

    @property
    def has_times(self) -> bool:
        """Whether the file has time levels and their times."""
        return TIME in self.coordinates and self.has_time_levels

    def stored_names(self, coordinates: Coordinates) -> dict[str, str]:
        """Return the names of the coordinates by their names in the data's first file."""
        stored = {access.info.name: self.coordinates[name].name for name, access in coordinates.stored.items()}
        if TIME in self.coordinates and coordinates.time_name:
            stored[coordinates.time_name] = self.coordinates[TIME].name
        return stored

    def moving_values(self, coordinates: Coordinates, chunk: SampleChunk) -> dict[str, Array]:
        """Return a chunk's part of the coordinates that change with time, by name."""
        first, part = self._first_level(chunk), slice(chunk.row_start, chunk.row_stop)
        levels = range(first, first + chunk.time_stop - chunk.time_start)
        return {
            self.coordinates[name].name: self._shaped(
                np.stack([coordinates.moving_grid(name, level)[part] for level in levels])
            )
            for name in coordinates.moving
        }

    def place_of(self, chunk: SampleChunk) -> tuple[slice, ...]:
        """Return the slices of the file's variables that a chunk covers."""
        first = self._first_level(chunk)
        parts = {
            TIME: slice(first, first + chunk.time_stop - chunk.time_start),
            ROWS: slice(chunk.row_start, chunk.row_stop),
            COLUMNS: slice(None),
        }
        return tuple(parts[kind] for kind in self.dimensions)

    def spread(self, values: Array, index: npt.NDArray[np.int64], chunk: SampleChunk) -> Array:
        """Return values (N,) of points, or (N, J, I) or (N,) of fields, as an array of a chunk; NaN elsewhere."""
        num_rows, num_columns = self.source.grid_shape
        if self.source.kind == "fields":
            fields = np.full((chunk.time_stop - chunk.time_start, *values.shape[1:]), np.nan)
            fields[index - self._first_level(chunk)] = values
            return self._shaped(fields)
        level, inside = np.divmod(index, num_rows * num_columns)
        row, column = np.divmod(inside, num_columns)
        shape = chunk.time_stop - chunk.time_start, chunk.row_stop - chunk.row_start, num_columns
        found = np.full(shape, np.nan)
        found[level - self._first_level(chunk), row - chunk.row_start, column] = values
        return self._shaped(found)

    def _shaped(self, values: Array) -> Array:
        """Return (T, J, I) without the dimensions that the file lacks; these have length 1."""
        shape = dict(zip((TIME, ROWS, COLUMNS), values.shape, strict=False))
        return values.reshape([shape[kind] for kind in self.dimensions if kind in shape])

    def _first_level(self, chunk: SampleChunk) -> int:
        return self.source.files[chunk.file].first_time + chunk.time_start


def plan_grid(
    source: SampleSource, coordinates: Coordinates, names: Names, layout: Layout, has_fixed_layout: bool
) -> OutputGrid | None:
    """Return the grid on which samples are written, adding its dimensions and coordinates to `names`; None for rows.

    `has_fixed_layout`: whether the file has the original program's layout. Raises UserError if a grid is requested
    that the data lacks.
    """
    if layout == "rows" or (layout == "auto" and has_fixed_layout):
        return None
    if source.kind == "fields" and not source.layout.is_grid:
        return None  # a table's fields are not time levels of a file
    leading = [source.files[0].variables[name] for name in source.leading_references] if source.layout.is_grid else []
    num_times, (num_rows, num_columns) = sum(record.num_times for record in source.files), source.grid_shape
    lengths = {TIME: num_times, ROWS: num_rows, COLUMNS: num_columns}
    stored = _dimensions(source, leading, lengths)
    has_unnamed = any("" in access.info.dimensions for access in leading)
    if not leading or not stored or (len(stored) < 2 and has_unnamed):
        if layout == "grid":
            raise UserError(f"--layout grid: {source.files[0].path} is a table of samples; leave the flag out")
        return None
    dimensions = {kind: names.take(name, lengths[kind]) for kind, name in stored.items()}
    known = [name for name in _AXES if name in coordinates.attributes]
    return OutputGrid(source, dimensions, {name: _coordinate(name, coordinates, dimensions, names) for name in known})


def _dimensions(source: SampleSource, leading: list[VariableAccess], lengths: Mapping[str, int]) -> dict[str, str]:
    """Return the names of the data's dimensions by kind, as in its first file."""
    found: dict[str, str] = {}
    others = [one for one in source.files[0].variables.values() if one.axes.time is not None]
    for number, kind in enumerate((TIME, ROWS, COLUMNS)):
        for access in (*leading, *others[:1]) if kind == TIME else leading:
            axis = access.axes.order[number]
            if axis is not None:
                found.setdefault(kind, access.info.dimensions[axis] or _USUAL_NAMES[kind])
        if lengths[kind] > 1:
            found.setdefault(kind, _USUAL_NAMES[kind])
    return found


def _coordinate(name: str, found: Coordinates, dimensions: Mapping[str, str], names: Names) -> OutputVariable:
    """Return a latitude, longitude or time variable, with the name and dimensions that it has in the data."""
    along: tuple[str, ...]
    axis, attributes = {"axis": _AXES[name]}, found.attributes[name]
    if name == TIME:
        shown, times = found.time_name.rpartition("/")[2] or name, np.asarray(found.times)
        along = (dimensions[TIME],) if TIME in dimensions else ()
        is_dimension, values = along == (shown,), times if along else times[0]
        if not counts_from_a_date(attributes["units"]) or (along and not is_dimension):
            axis = {}  # units without a reference date, or an auxiliary coordinate
        attributes = {**axis, **attributes} if along else {**attributes, **axis}
    else:
        access, is_moving = found.stored[name], name in found.moving
        kinds = {kind for kind, at in zip((TIME, ROWS, COLUMNS), access.axes.order, strict=True) if at is not None}
        along = tuple(own for kind, own in dimensions.items() if is_moving or kind in kinds - {TIME})
        shown, is_dimension = access.info.short_name, along == (access.info.short_name,)
        kept = tuple(slice(None) if dimensions.get(kind) in along else 0 for kind in (ROWS, COLUMNS))
        values = None if is_moving else found.grids[name][kept]
        shown = name if shown in dimensions.values() and not is_dimension else shown
        attributes = {**attributes, **(axis if is_dimension else {})}
    if is_dimension:
        names.variables.add(shown)
    else:
        shown = names.take(shown)
    return OutputVariable(shown, along, found.dtypes[name], attributes, values=values)
