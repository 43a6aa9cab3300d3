"""How predictions for the points of a grid come back as that grid, with its dimensions and coordinates.

T  time levels   J, I  rows and columns, or one row of cells in no order   N  samples
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import SampleSource
from mpitrain.data.describe.cf import COLUMNS, ROWS, TIME
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.coordinates import Coordinates
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import UserError
from mpitrain.inference.netcdf_output import OutputVariable
from mpitrain.inference.other_formats import Layout as Layout

Array = npt.NDArray[Any]
_USUAL_NAMES = {TIME: "time", ROWS: "row", COLUMNS: "column"}


@dataclass(frozen=True)
class OutputGrid:
    """The dimensions of a file of predictions by kind (time, rows, columns), without those that the data lacks.

    `coordinates` are its variables of place and time, `names` what each is called in `Coordinates`.
    """

    source: SampleSource
    dimensions: Mapping[str, str]
    coordinates: tuple[OutputVariable, ...]
    names: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The length of each dimension of the file, by its name."""
        return {name: _lengths(self.source)[kind] for kind, name in self.dimensions.items()}

    @property
    def stored_dimensions(self) -> dict[str, str]:
        """The names of the file's dimensions by those of the data's first file."""
        found = {}
        for access in (self.source.files[0].variables[name] for name in self.source.leading_references):
            for kind, axis in zip((TIME, ROWS, COLUMNS), access.axes.order, strict=True):
                if kind in self.dimensions and axis is not None and access.info.dimensions[axis]:
                    found[access.info.dimensions[axis]] = self.dimensions[kind]
        return found

    @property
    def auxiliary(self) -> list[str]:
        """The coordinates that are no dimension's own."""
        return [one.name for one in self.coordinates if one.dimensions != (one.name,)]

    @property
    def has_time_levels(self) -> bool:
        """Whether the first dimension is that of time levels."""
        return TIME in self.dimensions

    @property
    def has_times(self) -> bool:
        """Whether the file has time levels, and says when they are."""
        return TIME in self.names and self.has_time_levels

    def stored_names(self, coordinates: Coordinates) -> dict[str, str]:
        """Return the names here of the places and times by those in the data's first file."""
        shown = dict(zip(self.names, (one.name for one in self.coordinates), strict=True))
        stored = {access.info.name: shown[name] for name, access in coordinates.stored.items() if name in shown}
        if TIME in shown and coordinates.time_name:
            stored[coordinates.time_name] = shown[TIME]
        return stored

    def fixed_values(self, coordinates: Coordinates) -> dict[str, Array]:
        """Return the coordinates that no chunk brings, in the shape in which the file holds them, by their names."""
        values = {}
        for name, variable in zip(self.names, self.coordinates, strict=True):
            if name == TIME:
                times = np.asarray(coordinates.times)
                values[variable.name] = times if variable.dimensions else times[0]
            elif name in coordinates.grids:
                kept = [self.dimensions.get(kind) in variable.dimensions for kind in (ROWS, COLUMNS)]
                values[variable.name] = coordinates.grids[name][tuple(slice(None) if keep else 0 for keep in kept)]
        return values

    def moving_values(self, coordinates: Coordinates, chunk: SampleChunk) -> dict[str, Array]:
        """Return the part of a chunk of the coordinates that move, by their names."""
        first, part = self._first_level(chunk), slice(chunk.row_start, chunk.row_stop)
        levels = range(first, first + chunk.time_stop - chunk.time_start)
        return {
            variable.name: self._shaped(np.stack([coordinates.moving_grid(name, level)[part] for level in levels]))
            for name, variable in zip(self.names, self.coordinates, strict=True)
            if name in coordinates.moving
        }

    def place_of(self, chunk: SampleChunk) -> tuple[slice, ...]:
        """Return where in the file's variables a chunk lies."""
        first = self._first_level(chunk)
        parts = {
            TIME: slice(first, first + chunk.time_stop - chunk.time_start),
            ROWS: slice(chunk.row_start, chunk.row_stop),
            COLUMNS: slice(None),
        }
        return tuple(parts[kind] for kind in self.dimensions)

    def spread(self, values: Array, index: npt.NDArray[np.int64], chunk: SampleChunk) -> Array:
        """Return values (N,) of points, or (N, J, I) or (N,) of fields, at their places in a chunk, else NaN."""
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
        """Return (T, J, I) without the dimensions that the file lacks, which are of length 1."""
        shape = dict(zip((TIME, ROWS, COLUMNS), values.shape, strict=False))
        return values.reshape([shape[kind] for kind in self.dimensions if kind in shape])

    def _first_level(self, chunk: SampleChunk) -> int:
        return self.source.files[chunk.file].first_time + chunk.time_start


def plan_grid(
    source: SampleSource, coordinates: Coordinates, taken: Iterable[str], layout: Layout, has_fixed_layout: bool
) -> OutputGrid | None:
    """Return the grid in which points are written; None where they are rows.

    `taken` are names that neither dimensions nor coordinates may have; `has_fixed_layout` is whether the file is one
    of the original program's. Raises UserError where a grid is asked for and the data has none.
    """
    if layout == "rows" or (layout == "auto" and has_fixed_layout):
        return None
    if source.kind == "fields" and not source.layout.is_grid:
        return None  # of a table, whose fields are no time levels of a file
    leading = [source.files[0].variables[name] for name in source.leading_references] if source.layout.is_grid else []
    dimensions = _dimensions(source, leading, set(taken))
    has_unnamed = any("" in access.info.dimensions for access in leading)
    if not leading or not dimensions or (len(dimensions) < 2 and has_unnamed):
        if layout == "grid":
            raise UserError(f"--layout grid: {source.files[0].path} is a table of samples; leave the flag out")
        return None
    names: list[str] = []
    variables: list[OutputVariable] = []
    for name in (TIME, "lat", "lon"):
        if name in coordinates.attributes:
            names.append(name)
            variables.append(_coordinate(name, coordinates, dimensions, {*taken, *(one.name for one in variables)}))
    return OutputGrid(source, dimensions, tuple(variables), tuple(names))


def _lengths(source: SampleSource) -> dict[str, int]:
    num_times = sum(record.num_times for record in source.files)
    return {TIME: num_times, ROWS: source.grid_shape[0], COLUMNS: source.grid_shape[1]}


def _dimensions(source: SampleSource, leading: list[VariableAccess], taken: set[str]) -> dict[str, str]:
    """Return the dimensions by kind that the data has, named as in its first file."""
    found: dict[str, str] = {}
    lengths = _lengths(source)
    others = [one for one in source.files[0].variables.values() if one.axes.time is not None]
    for number, kind in enumerate((TIME, ROWS, COLUMNS)):
        for access in (*leading, *others[:1]) if kind == TIME else leading:
            axis = access.axes.order[number]
            if kind not in found and axis is not None:
                found[kind] = _free(access.info.dimensions[axis] or _USUAL_NAMES[kind], {*taken, *found.values()})
        if kind not in found and lengths[kind] > 1:
            found[kind] = _free(_USUAL_NAMES[kind], {*taken, *found.values()})
    return found


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _coordinate(name: str, coordinates: Coordinates, dimensions: Mapping[str, str], taken: set[str]) -> OutputVariable:
    """Return a variable of place or time: named as in the data, and along the dimensions along which it lies there."""
    dtype, attributes = coordinates.dtypes[name], coordinates.attributes[name]
    if name == TIME:
        own, shown = coordinates.time_name.rpartition("/")[2] or name, dimensions.get(TIME)
        axis = {"axis": "T"} if counts_from_a_date(attributes["units"]) else {}
        if shown is not None and own == shown:
            return OutputVariable(shown, (shown,), dtype, {**axis, **attributes})
        free = _free(own, {*taken, *dimensions.values()})
        if shown is None:  # one time for all that the file holds
            return OutputVariable(free, (), dtype, {**attributes, **axis})
        return OutputVariable(free, (shown,), dtype, attributes)  # beside the dimension's own coordinate
    access = coordinates.stored[name]
    along = [kind for kind, axis in zip((TIME, ROWS, COLUMNS), access.axes.order, strict=True) if axis is not None]
    is_moving = name in coordinates.moving
    own_names = tuple(shown for kind, shown in dimensions.items() if is_moving or (kind in along and kind != TIME))
    shown = access.info.short_name
    is_dimension = own_names == (shown,)
    if shown in dimensions.values() and not is_dimension:
        shown = name
    axis = {"axis": "Y" if name == "lat" else "X"} if is_dimension else {}
    shown = shown if is_dimension else _free(shown, {*taken, *dimensions.values()})
    return OutputVariable(shown, own_names, dtype, {**attributes, **axis})
