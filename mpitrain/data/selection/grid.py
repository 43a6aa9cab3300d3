"""Samples of gridded variables: the selected points of a chunk of a file, and their values.

T  time levels   J  rows   I  columns   N  selected samples   F  inputs   O  targets
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.compiled.columns import StoredColumn, fill_table
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.portable_math import cosine_of_turns
from mpitrain.data.samples import LeftOut, Samples
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.expressions.clock import clock_values, day_of
from mpitrain.data.selection.expressions.expression import BoolArray, MaskExpression
from mpitrain.data.selection.expressions.levels import spans_of
from mpitrain.data.selection.expressions.naming import Naming
from mpitrain.data.selection.rule import Condition, PointRule
from mpitrain.data.selection.source import SampleLayout, SampleSource
from mpitrain.data.selection.times.lags import Lag
from mpitrain.data.selection.variable_access import VariableAccess, read_part, read_stored
from mpitrain.errors import DataError

Array = npt.NDArray[Any]
# Indices (N,) of points in a chunk; None for all points, which saves the array of indices.
Positions = npt.NDArray[np.int64] | None
_BLOCK_POINTS = 32768
_MOST_BETWEEN_POINTS = 4096


@dataclass(frozen=True, kw_only=True)
class GridLayout(SampleLayout):
    """Properties that all files of a gridded source share. Can be pickled.

    `lagged` are the levels (T,) of the source from which each lag takes its values; -1 for none: that level is no
    sample. `exact_statics` are those of `statics` that derived variables need, without rounding. Areas are those of the
    variable `area_name`, divided by `area_scale`, or the cosine of the latitude `latitude_name` * `latitude_scale` (in
    degrees); both names are None if areas are not used.
    """

    grid_shape: tuple[int, int]
    rule: PointRule
    latitude_name: str | None = None
    latitude_scale: float = 1.0
    area_name: str | None = None
    area_scale: float = 1.0
    naming: Naming = field(default_factory=Naming)
    calendar: str = "standard"
    lagged: Mapping[Lag, npt.NDArray[np.int64]] = field(default_factory=dict)
    exact_statics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    is_grid = True

    @cached_property
    def static_mask(self) -> BoolArray | None:
        """See `SampleLayout.static_mask`."""
        masks = [one.evaluate(self.statics.__getitem__) for one in self.rule.conditions if self.is_static(one)]
        if not masks:
            return None
        return np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*masks))[0], self.grid_shape).copy()

    def is_static(self, condition: Condition | MaskExpression) -> bool:
        """Return whether a condition depends only on variables without time."""
        has_dates = isinstance(condition, MaskExpression) and bool(condition.dates)
        return bool(condition.names) and not has_dates and all(name in self.statics for name in condition.names)

    def read(self, source: SampleSource, chunk: SampleChunk) -> Samples:
        """See `SampleLayout.read`."""
        part = _Part(self, source, chunk)
        return part.fields() if self.kind == "fields" else part.points()

    def rows_by_place(self, source: SampleSource) -> BoolArray | None:
        """See `SampleLayout.rows_by_place`: the conditions on coordinates that are neither inputs nor targets."""
        known = {one for name in (*self.input_names, *self.target_names) for one in self.references(name)}
        description = self.selection.describe(source.handle(0))
        of_place = lambda name: name not in known and description.is_of_grid(name)  # noqa: E731
        conditions = [one for one in self.rule.conditions if one.names and all(map(of_place, one.names))]
        if not conditions:
            return None
        return np.concatenate([one.fulfils(conditions)[:, 0, 0] for one in self._whole_files(source)])

    def _whole_files(self, source: SampleSource) -> Iterator[_Part]:
        """Yield the first row of each file, with all its time levels."""
        for number, record in enumerate(source.files):
            yield _Part(self, source, SampleChunk(number, 0, record.num_times, 0, 1))

    def lines_of(self, left_out: LeftOut, num_points: int) -> list[str]:
        """See `SampleLayout.lines_of`."""
        by_rule = f"points not selected by {self.rule.description}: {left_out.by_rule:,} of {num_points:,}"
        area = self.area_name or f"cosine of {self.latitude_name}"
        without_area = f"points not selected because their area ({area}) is 0 or missing: {left_out.without_area:,}"
        return [line for line, count in zip((by_rule, without_area), left_out, strict=True) if count]

    def references(self, name: str) -> tuple[str, ...]:
        """See `SampleLayout.references`."""
        return self.naming.references(name)

    def levels_with_samples(self, source: SampleSource) -> BoolArray:
        """See `SampleLayout.levels_with_samples`: by lags, repeated levels, and conditions on times."""
        return np.concatenate([one.levels_with_samples() for one in self._whole_files(source)])

    def first_level(self, source: SampleSource, name: str) -> Array:
        """See `SampleLayout.first_level`."""
        if source.files[0].are_rows:
            return np.asarray(next(self._whole_files(source)).broadcast(name)[:, 0])
        part = _Part(self, source, SampleChunk(0, 0, 1, 0, self.grid_shape[0]))
        return np.asarray(part.broadcast(name)[0])


def field_weights(inputs: Array, targets: Array) -> npt.NDArray[np.float32]:
    """Return 1 where a target (N, O, H, W) is measured; without targets, (N, 1, H, W), where any input is."""
    measured = np.isfinite(targets) if targets.shape[1] else np.isfinite(inputs).any(axis=1, keepdims=True)
    return np.asarray(measured, dtype=np.float32)


class _Part:
    """One chunk while it is read; each variable is read from the file once, and kept for all names that need it."""

    def __init__(self, layout: GridLayout, source: SampleSource, chunk: SampleChunk) -> None:
        self._layout, self._source, self._chunk = layout, source, chunk
        self._record = source.files[chunk.file]
        self._times, self._rows = slice(chunk.time_start, chunk.time_stop), slice(chunk.row_start, chunk.row_stop)
        num_times, num_rows = chunk.time_stop - chunk.time_start, chunk.row_stop - chunk.row_start
        self._shape = (num_times, num_rows, layout.grid_shape[1])  # (T, J, I)
        self._stored: dict[tuple[str, tuple[int, ...]], Array] = {}

    def points(self) -> Samples:
        """Return the selected points, in the order of time, row, column."""
        layout, areas, fulfils = self._layout, self._areas(), self._fulfils_rule()
        selected = fulfils & self._are_samples()[:, None, None]
        num_before = np.count_nonzero(selected)
        if areas is not None and (layout.area_name is not None or layout.selection.weighs_loss):
            selected &= areas > 0  # points whose area is 0 or missing are not samples
        num_without_area = num_before - np.count_nonzero(selected)
        positions = None if selected.all() else np.flatnonzero(selected)
        if layout.selection.thin_fraction < 1.0:
            kept = np.flatnonzero(layout.thinned(self._grid_index(positions)))
            positions = kept if positions is None else positions[kept]
        if areas is not None:
            areas = np.broadcast_to(areas, self._shape).reshape(-1)
            areas = areas.copy() if positions is None else areas[positions]
        return Samples(
            inputs=self._table(layout.input_names, positions),
            targets=self._table(layout.read_targets, positions),
            grid_index=self._grid_index(positions),
            input_names=layout.input_names,
            target_names=layout.read_targets,
            weights=areas[:, None] if areas is not None and layout.selection.weighs_loss else None,
            area_weights=areas,
            left_out=LeftOut(int(fulfils.size - np.count_nonzero(fulfils)), int(num_without_area)),
        )

    def fields(self) -> Samples:
        """Return each time level as a sample: NaN and weight 0 where a point is not selected or not measured."""
        layout, selected = self._layout, self._fulfils_rule() & self._are_samples()[:, None, None]
        levels = np.arange(self._times.start, self._times.stop, dtype=np.int64) + self._record.first_time  # (N,)
        kept = np.flatnonzero(layout.thinned(levels) & ~self._repeated())
        masked = ~selected[kept][:, None]  # (N, 1, H, W)
        inputs, targets = (self._stack(names, kept) for names in (layout.input_names, layout.read_targets))
        for values in (inputs, targets):
            np.copyto(values, np.nan, where=masked)
        weights, areas = field_weights(inputs, targets), self._areas()
        if areas is not None:
            areas = np.nan_to_num(np.broadcast_to(areas, self._shape)[kept])
            weights = weights * areas[:, None] if layout.selection.weighs_loss else weights
        return Samples(
            inputs=inputs,
            targets=targets,
            grid_index=levels[kept],
            input_names=layout.input_names,
            target_names=layout.read_targets,
            weights=weights,
            area_weights=areas,
        )

    def _are_samples(self) -> BoolArray:
        """Return which levels (T,) of this chunk do not repeat others, and have values for all lags."""
        are_samples = ~self._repeated()
        for lag in self._layout.lagged:
            are_samples &= self._levels_at(lag) >= 0
        return are_samples

    def levels_with_samples(self) -> BoolArray:
        """Return which levels (T,) of this chunk may have samples."""
        found = self._are_samples()
        for condition in self._layout.rule.conditions:
            if isinstance(condition, MaskExpression):
                on_times = condition.evaluate_on(self._layout.naming.clocks, self._values)
                found &= np.broadcast_to(on_times, (len(found), 1, 1))[:, 0, 0]
        return found

    def _fulfils_rule(self) -> BoolArray:
        """Return which points (T, J, I) fulfil all conditions."""
        layout = self._layout
        selected = np.ones(self._shape, dtype=bool)
        if layout.static_mask is not None:
            selected &= layout.static_mask[self._rows]
        return selected & self.fulfils([one for one in layout.rule.conditions if not layout.is_static(one)])

    def fulfils(self, conditions: Sequence[Condition | MaskExpression]) -> BoolArray:
        """Return which points (T, J, I) fulfil these conditions."""
        fulfilled = np.ones(self._shape, dtype=bool)
        for condition in conditions:
            fulfilled &= condition.evaluate(self._values)
        return fulfilled

    def _repeated(self) -> BoolArray:
        """Return which levels (T,) of this chunk repeat others."""
        first, repeats = self._record.first_time, self._layout.repeats
        if repeats is None:
            return np.zeros(self._shape[0], dtype=bool)
        return repeats[first + self._times.start : first + self._times.stop] >= 0

    def _levels_at(self, lag: Lag) -> npt.NDArray[np.int64]:
        """Return the levels (T,) of the source from which a lag takes its values for this chunk; -1 for none."""
        first = self._record.first_time
        return self._layout.lagged[lag][first + self._times.start : first + self._times.stop]

    def _grid_index(self, positions: Positions) -> npt.NDArray[np.int64]:
        """Return the positions in the whole source of points (N,) of this chunk."""
        num_times, num_rows, num_columns = self._shape
        points_a_level = self._layout.grid_shape[0] * num_columns
        skipped = points_a_level - num_rows * num_columns  # between the chunk's rows of one level and of the next
        first = (self._record.first_time + self._times.start) * points_a_level + self._rows.start * num_columns
        if positions is None:
            grid_index = np.arange(first, first + math.prod(self._shape))
            positions = grid_index - first if skipped and num_times > 1 else grid_index
        else:
            grid_index = positions + first
        if skipped and num_times > 1:
            bounds = np.searchsorted(positions, np.arange(num_times + 1) * (num_rows * num_columns))
            for level in range(1, num_times):
                grid_index[bounds[level] : bounds[level + 1]] += level * skipped
        return grid_index

    def _table(self, names: tuple[str, ...], positions: Positions) -> Array:
        """Return variables at some positions as (N, F); only these are decoded."""
        num_points = math.prod(self._shape) if positions is None else len(positions)
        table = np.empty((num_points, len(names)), dtype=self._layout.selection.dtype)
        stored = [self._flat(name) for name in names]
        if self._fill(table, stored, positions):
            return table
        columns = [(values, access.decode if access else np.asarray) for values, access in stored]
        # Fill the table in blocks of rows, so that a block stays in the cache while all its columns are written.
        for start in range(0, num_points, _BLOCK_POINTS):
            block = slice(start, start + _BLOCK_POINTS)
            for number, (values, decode_one) in enumerate(columns):
                part = values[block] if positions is None else values.take(positions[block])
                table[block, number] = decode_one(part)
        return table

    def _fill(self, table: Array, stored: Sequence[tuple[Array, VariableAccess | None]], positions: Positions) -> bool:
        """Fill the table with compiled code; return False if it is not available or cannot decode all variables."""
        columns = [access.column(values) if access else StoredColumn(values) for values, access in stored]
        known = [column for column in columns if column is not None]
        return len(known) == len(columns) and fill_table(table, known, positions)

    def _flat(self, name: str) -> tuple[Array, VariableAccess | None]:
        """Return a variable as stored, flat (T * J * I,), and the access that decodes it; None if it is decoded."""
        access = self._record.variables.get(name)
        if name in self._layout.statics or access is None or access.lag:
            return self.broadcast(name).reshape(-1), None
        stored = self._read(name)
        return (stored if stored.shape == self._shape else np.broadcast_to(stored, self._shape)).reshape(-1), access

    def _areas(self) -> Array | None:
        """Return the areas of points as float32, of a shape that broadcasts to (T, J, I), NaN where missing.

        Return None if areas are not used.
        """
        layout = self._layout
        if layout.latitude_name is not None:
            latitude = self._values(layout.latitude_name) * layout.latitude_scale
            return cosine_of_turns(latitude.astype(np.float64) / 360.0).astype(np.float32)
        if layout.area_name is None:
            return None
        areas = np.asarray(self._values(layout.area_name), dtype=np.float64) / layout.area_scale
        if np.any(areas < 0):
            raise DataError(
                f"{self._record.path}: variable '{layout.area_name}', which data.area_variable names, has values below "
                "0; name a variable that holds the cells' areas"
            )
        return areas.astype(np.float32)

    def _stack(self, names: tuple[str, ...], kept: npt.NDArray[np.int64]) -> Array:
        stack = np.empty((len(kept), len(names), *self._shape[1:]), dtype=self._layout.selection.dtype)  # (N, F, H, W)
        for channel, name in enumerate(names):
            stack[:, channel] = self.broadcast(name)[kept]
        return stack

    def broadcast(self, name: str) -> Array:
        """Return a variable's measurements (T, J, I)."""
        return np.broadcast_to(self._values(name), self._shape)

    def _values(self, name: str) -> Array:
        """Return a variable's measurements in the samples' type, of shape (T, J, I) with 1 along axes that it lacks."""
        static = self._layout.statics.get(name)
        if static is not None:
            return static[:, self._rows] if static.shape[1] > 1 else static
        access = self._record.variables.get(name)
        if access is None:
            return self._computed(name)
        if access.lag is not None:
            return self._lagged(name, access.lag, self._layout.selection.dtype)
        return access.decode(self._read(name)).astype(self._layout.selection.dtype, copy=False)

    def _computed(self, name: str) -> Array:
        """Return what is computed, not read: a derived variable, a date, or a quantity of the decoded time."""
        naming, calendar = self._layout.naming, self._layout.calendar
        if name in naming.derived:
            # In float64: rounding to float32 first would lose the digits of a difference of two large numbers.
            in_double = lambda one: np.asarray(self._exact(one), dtype=np.float64)  # noqa: E731
            return np.atleast_3d(naming.derived[name].evaluate(in_double)).astype(self._layout.selection.dtype)
        if name not in naming.clocks:
            return np.float64(day_of(name, calendar, "domain.mask")).reshape(1, 1, 1)
        times = self._record.times
        assert times is not None
        return clock_values(name, times[self._times], calendar)[:, None, None]

    def _exact(self, name: str) -> Array:
        """Return a variable's measurements as decoded, without rounding; with `data.rules=1` in the samples' type."""
        access, static = self._record.variables.get(name), self._layout.exact_statics.get(name)
        if static is not None:
            return static[:, self._rows] if static.shape[1] > 1 else static
        if access is None or not self._layout.selection.has_named_dimensions:
            return self._values(name)
        if access.lag is not None:
            return self._lagged(name, access.lag, "float64")
        return access.decode(self._read(name))

    def _lagged(self, name: str, lag: Lag, dtype: str) -> Array:
        """Return a variable some steps earlier or later, NaN where there is no level."""
        levels = self._levels_at(lag)
        found = np.full(self._shape, np.nan, dtype=dtype)
        known = np.flatnonzero(levels >= 0)
        known = known[np.argsort(levels[known], kind="stable")]
        firsts = [record.first_time for record in self._source.files]
        numbers = np.searchsorted(firsts, levels[known], side="right") - 1
        for number in np.unique(numbers).tolist():
            of_file = known[numbers == number]
            own = levels[of_file] - firsts[number]
            # Nearby levels are read in one call: reading unneeded rows of a table costs little, levels of a grid a lot.
            apart = _MOST_BETWEEN_POINTS // math.prod(self._shape[1:]) + 1
            for here in np.split(of_file, np.flatnonzero(np.diff(own) > apart) + 1):
                positions = levels[here] - firsts[number]
                access, part = self._source.files[number].variables[name], slice(positions[0], positions[-1] + 1)
                stored = read_part(self._source.handle(number), access, part, self._rows)
                found[here] = access.decode(stored)[positions - positions[0] if len(stored) > 1 else 0]
        return found

    def _read(self, name: str) -> Array:
        access = self._record.variables[name]
        own, axes, spans = access.info.name, tuple(axis for axis, _ in access.axes.fixed), None
        if axes:
            # All levels that are needed are read at once: a stored block may hold several.
            spans = self._spans[own, axes]
        key = own, axes
        if key not in self._stored:
            self._stored[key] = read_stored(self._file, access, self._times, self._rows, spans)
        return access.axes.arrange(self._stored[key], spans)

    @cached_property
    def _spans(self) -> dict[tuple[str, tuple[int, ...]], dict[int, tuple[int, int]]]:
        """The range of positions needed along the fixed axes, by a variable's name in the file and these axes."""
        fixed: dict[tuple[str, tuple[int, ...]], list[tuple[tuple[int, int], ...]]] = {}
        for one in self._record.variables.values():
            if one.axes.fixed and not one.lag:
                fixed.setdefault((one.info.name, tuple(axis for axis, _ in one.axes.fixed)), []).append(one.axes.fixed)
        return {key: spans_of(places) for key, places in fixed.items()}

    @cached_property
    def _file(self) -> FieldFile:
        return self._source.handle(self._chunk.file)
