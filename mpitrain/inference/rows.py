"""The rows that carry predictions to the root, and the sink that writes them to a file.

N  samples   F  inputs   O  targets   H, W  rows and columns of a field   D = H * W, 1 for points
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import Coordinates, Roles, Samples, SampleSource, open_coordinates
from mpitrain.data.describe.cf import TIME
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.errors import DataError
from mpitrain.inference.carried import carry
from mpitrain.inference.cf_variables import (
    ERROR,
    GRID_INDEX,
    PREDICTED,
    ROLE,
    derivative_name,
    dimensions_of,
    extra_variables,
    file_attributes,
    icenet_names,
    variable_names,
    variables_of,
    written_names,
)
from mpitrain.inference.cf_variables import check_prediction as check_prediction
from mpitrain.inference.levels import levels_of
from mpitrain.inference.netcdf_output import GrowingFile, Names
from mpitrain.inference.output_grid import Layout, OutputGrid, plan_grid
from mpitrain.inference.roles import ROLE_NAMES
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowLayout:
    """Layout of a row: grid_index, O*D targets, O*D predictions, O*F derivatives, num_extra*D further values.

    Rows are float64, which holds all values exactly. Rows have no targets if the data has none.
    """

    kind: str
    num_inputs: int
    num_outputs: int
    grid_shape: tuple[int, int]
    with_jacobian: bool
    has_targets: bool = True
    num_extra: int = 0
    """Number of further values at each point of a sample, in the order of `extra_variables`."""

    @property
    def field_shape(self) -> tuple[int, ...]:
        """(H, W), () for points."""
        return self.grid_shape if self.kind == "fields" else ()

    @property
    def _num_places(self) -> int:
        return int(np.prod(self.field_shape, dtype=np.int64))

    def no_rows(self) -> Array:
        """Return an array of 0 rows with the columns of this layout."""
        values = ((1 + self.has_targets) * self.num_outputs + self.num_extra) * self._num_places
        return np.empty((0, 1 + values + (self.num_outputs * self.num_inputs if self.with_jacobian else 0)))

    def pack(self, samples: Samples, outputs: Array, *more: Array) -> Array:
        """Return the rows of samples with `outputs` (N, O, ...); `more`: derivatives (N, O, F), then extra values.

        Outputs at points of weight 0 become NaN.
        """
        targets, count = samples.targets.astype(np.float64), len(samples)
        predictions, further = outputs.astype(np.float64), list(more)
        if samples.weights is not None:
            counts = np.broadcast_to(samples.weights, predictions.shape) > 0
            predictions[~counts] = np.nan
            if self.num_extra and self.field_shape:  # extra values are further sets of outputs
                sets = further[-1].reshape(count, -1, *counts.shape[1:])
                further[-1] = np.where(counts[:, None], sets, np.nan)
        parts = [samples.grid_index[:, None].astype(np.float64), targets, predictions, *further]
        return np.concatenate([part.reshape(count, -1) for part in parts], axis=1, dtype=np.float64)

    def extra_of(self, rows: Array) -> Array:
        """Return the extra values in the rows (N, num_extra, ...)."""
        first = rows.shape[1] - self.num_extra * self._num_places
        return rows[:, first:].reshape(len(rows), self.num_extra, *self.field_shape)

    def unpack(self, rows: Array) -> tuple[npt.NDArray[np.int64], Array | None, Array, Array | None]:
        """Return grid_index (N,), targets or None, predictions (N, O, ...), derivatives (N, O, F) or None."""
        table = rows[:, : rows.shape[1] - self.num_extra * self._num_places]
        values = self.num_outputs * self._num_places
        first = 1 + values * self.has_targets
        shape = (len(table), self.num_outputs, *self.field_shape)
        targets = table[:, 1:first].reshape(shape) if self.has_targets else None
        predictions, rest = table[:, first : first + values].reshape(shape), table[:, first + values :]
        jacobian = rest.reshape(len(table), self.num_outputs, self.num_inputs) if self.with_jacobian else None
        return table[:, 0].astype(np.int64), targets, predictions, jacobian


def row_layout_of(network: StoredNetwork, source: SampleSource, with_jacobian: bool) -> RowLayout:
    """Return the layout of the rows of a network's predictions for the samples of `source`."""
    sizes = network.num_inputs, network.num_outputs, source.grid_shape
    num_extra = len(extra_variables(network, source, with_jacobian))
    return RowLayout(source.kind, *sizes, with_jacobian, source.has_targets, num_extra)


class PredictionSink:
    """Writer of the predicted rows on the root; on other ranks only a counter of their dropped and outside values."""

    def __init__(
        self, network: StoredNetwork, source: SampleSource, path: Path, layout: RowLayout, arithmetic: str,
        written_as: Layout = "auto", roles: Roles | None = None,
    ) -> None:  # fmt: skip
        """Prepare the sink; `open` creates the file. `roles`: each sample's role in training, on the root, if known."""
        self._roles = roles
        self.by_role: dict[str, dict[str, ErrorSums]] = {}
        self.beyond_data: dict[str, tuple[int, int]] = {}
        self.num_dropped = 0
        self.num_samples = 0
        self.num_outside = np.zeros((2, layout.num_inputs), dtype=np.int64)
        self._network, self._source, self._path, self._layout = network, source, path, layout
        self._sums = {name: ErrorSums() for name in source.target_names if source.has_targets}
        self._arithmetic, self._written_as = arithmetic, written_as
        self._extra = extra_variables(network, source, layout.with_jacobian)
        self._called = variable_names((*source.input_names, *source.target_names))
        self._names = icenet_names(network, source)
        self._grid: OutputGrid | None = None
        self._file: GrowingFile | None = None
        self._coordinates: Coordinates | None = None

    def open(self) -> None:
        """Create the file. For the root. Raises OutputError, DataError, UserError."""
        network, source, with_jacobian = self._network, self._source, self._layout.with_jacobian
        self._coordinates = open_coordinates(source)
        # Names are given in this order: results keep theirs, then come the grid, coordinates, and what is copied.
        levels = levels_of(source, {self._called[target]: target for target in source.target_names})
        written = written_names(source, with_jacobian, self._extra)
        names = Names(variables={*written, *map(levels.whole, written)})
        self._grid = plan_grid(source, self._coordinates, names, self._written_as, self._names is not None)
        self._names = None if self._grid else self._names
        coordinates, data = variables_of(
            network, source, self._coordinates, self._names, with_jacobian, self._extra, self._grid,
            self._roles is not None,
        )  # fmt: skip
        if self._grid is None:
            names.dimensions |= dimensions_of(source)
        names.variables.update(one.name for one in (*coordinates, *data))
        carried = carry(source, self._grid, self._coordinates, names)
        of_levels = levels.add_coordinates(source.handles.get(source.files[0]), names) if levels.accesses else []
        leading = next(iter(names.dimensions)) if self._grid is None or self._grid.has_time_levels else ""
        data, places = levels.merge([carried.named_by(one) for one in data], leading)
        # An unlimited dimension ends at the last record written; without times no variable has a value at all levels.
        is_fixed = self._grid is not None and not self._grid.has_times
        attributes = file_attributes(network, source, self._arithmetic)
        others = map(carried.bounded, (*carried.variables.values(), *coordinates))
        # A target that is also a coordinate (latitude, longitude or time) is written once.
        variables = list({one.name: one for one in (*of_levels, *others, *data)}.values())
        self._file = GrowingFile(self._path, names.dimensions, variables, attributes, is_fixed, places)

    def append(self, rows: Array, chunk: SampleChunk) -> None:
        """Write the rows of the next chunk. For the root. Raises OutputError, DataError."""
        # Chunks come in the order of the source, so that neither the file nor the sums depend on the number of ranks.
        assert self._file is not None
        assert self._coordinates is not None
        index, targets, predictions, jacobian = self._layout.unpack(rows)
        self.num_samples += len(index)
        roles = None if self._roles is None else self._roles[index]
        records = self._answers(targets, predictions, jacobian, roles)
        records |= dict(zip(self._extra, np.moveaxis(self._layout.extra_of(rows), 1, 0), strict=True))
        if roles is not None and not self._names:
            records[ROLE] = roles.astype(np.float64)
        if self._grid is not None:
            self._put_on_grid(self._grid, index, records, chunk)
        else:
            self._file.append(_renamed(self._places(index) | records, self._names))

    def _places(self, index: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Return the grid index, coordinates and times of samples, by variable name."""
        assert self._coordinates is not None
        records: dict[str, Array] = {} if self._names else {GRID_INDEX: index}
        if self._source.kind == "points":
            records |= self._coordinates.at(index)
        elif self._coordinates.times is not None:
            records[TIME] = self._coordinates.times[index]
        return records

    def _answers(
        self, targets: Array | None, predictions: Array, jacobian: Array | None, roles: Array | None
    ) -> dict[str, Array]:  # fmt: skip
        """Return truth, prediction, error and derivatives of each target; add the errors to the statistics."""
        records: dict[str, Array] = {}
        for number, target in enumerate(self._source.target_names):
            name, answer = self._called[target], predictions[:, number]
            records[name + PREDICTED] = answer
            if targets is not None:
                truth = targets[:, number]
                self._sums[target].merge(ErrorSums.of(truth, answer - truth))
                self._count_beyond_data(target, truth, answer)
                self._add_by_role(target, truth, answer - truth, roles)
                records |= {name: truth, name + ERROR: answer - truth}
            if jacobian is not None:
                names = (derivative_name(name, self._called[one]) for one in self._source.input_names)
                records |= dict(zip(names, jacobian[:, number].T, strict=True))
        return records

    def _count_beyond_data(self, target: str, truth: Array, answer: Array) -> None:
        number, all_ = self.beyond_data.get(target, (0, 0))
        is_answer = np.isfinite(answer)
        beyond = is_answer & ~np.isfinite(truth)
        self.beyond_data[target] = number + int(beyond.sum()), all_ + int(is_answer.sum())

    def _add_by_role(self, target: str, truth: Array, errors: Array, roles: Array | None) -> None:
        for role in np.unique(roles) if roles is not None else ():
            sums = self.by_role.setdefault(ROLE_NAMES[role], {})
            sums.setdefault(target, ErrorSums()).merge(ErrorSums.of(truth[roles == role], errors[roles == role]))

    def _put_on_grid(
        self, grid: OutputGrid, index: npt.NDArray[np.int64], records: Mapping[str, Array], chunk: SampleChunk
    ) -> None:
        assert self._file is not None
        assert self._coordinates is not None
        where = grid.place_of(chunk)
        self._file.put(grid.moving_values(self._coordinates, chunk), where)
        for name, values in records.items() if len(index) else ():  # one variable at a time: a chunk is large
            spread = grid.spread(values, index, chunk)
            self._file.put({name: spread}, where[: spread.ndim])

    def finish(self, outside: Mapping[str, float]) -> dict[str, ErrorSums]:
        """Complete the file; return the error statistics of the targets in the data. For the root.

        `outside`: the share of each input's values outside of the trained range, written as a global attribute
        unless the layout is fixed. Raises OutputError, and DataError if nothing was predicted.
        """
        assert self._file is not None
        if self.num_samples == 0:
            raise DataError(
                f"{self._source.files[0].path}: no usable sample is selected by the settings; change the domain or the "
                "data"
            )
        if outside and not self._names:
            shares = ", ".join(f"{name}: {share:.6g}" for name, share in outside.items())
            self._file.describe({"share_of_inputs_outside_of_trained_range": shares})
        self._file.finish()
        return self._sums

    def abandon(self) -> None:
        """Remove the unfinished file, if any."""
        if self._file is not None:
            self._file.abandon()


def _renamed(records: Mapping[str, Array], names: Mapping[str, str] | None) -> dict[str, Array]:
    """Return the records by the names of a fixed layout, without those that it lacks; all if `names` is None."""
    if names is None:
        return dict(records)
    return {names[name]: values for name, values in records.items() if name in names}
