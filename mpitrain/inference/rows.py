"""The rows in which predictions travel to the root, and the file that it makes of them.

N  samples   F  inputs   O  targets   H, W  rows and columns of a field   D = H * W, 1 for points
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.data.samples import Samples
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.coordinates import TIME, Coordinates, open_coordinates
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError
from mpitrain.inference.cf_variables import (
    ERROR,
    GRID_INDEX,
    PREDICTED,
    derivative_name,
    dimensions_of,
    extra_variables,
    file_attributes,
    icenet_names,
    variable_name,
    variables_of,
    written_names,
)
from mpitrain.inference.netcdf_output import GrowingFile
from mpitrain.inference.output_grid import Layout, OutputGrid, plan_grid
from mpitrain.models.files.stored_network import StoredNetwork
from mpitrain.observe.page.skill import ErrorSums

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowLayout:
    """Rows of float64, in which all else is exact: grid_index, O*D targets, O*D predictions, O*F derivatives.

    Without targets in the data, rows and samples have none: O is 0 for them alone.
    """

    kind: str
    num_inputs: int
    num_outputs: int
    grid_shape: tuple[int, int]
    with_jacobian: bool
    has_targets: bool = True
    num_extra: int = 0
    """Further numbers a sample, which only the names given to the sink explain."""

    @property
    def field_shape(self) -> tuple[int, ...]:
        """(H, W), () for points."""
        return self.grid_shape if self.kind == "fields" else ()

    def no_rows(self) -> torch.Tensor:
        """Return no rows, of the right width."""
        values = self.num_outputs * int(np.prod(self.field_shape, dtype=np.int64))
        width = 1 + (1 + self.has_targets) * values + (self.num_outputs * self.num_inputs if self.with_jacobian else 0)
        return torch.empty((0, width + self.num_extra), dtype=torch.float64)

    def pack(self, samples: Samples, outputs: Array, *more: Array) -> torch.Tensor:
        """Return the rows of samples with their outputs (N, O, ...), then derivatives (N, O, F) and what is extra."""
        targets, count = samples.targets.astype(np.float64), len(samples)
        predictions = outputs.astype(np.float64)
        if samples.weights is not None:
            predictions[np.broadcast_to(samples.weights, predictions.shape) == 0] = np.nan
        parts = [samples.grid_index[:, None].astype(np.float64), targets, predictions]
        parts += more
        return torch.from_numpy(np.concatenate([part.reshape(count, -1) for part in parts], axis=1, dtype=np.float64))

    def extra_of(self, rows: torch.Tensor) -> Array:
        """Return what is extra in the rows (N, num_extra)."""
        return rows.numpy()[:, rows.shape[1] - self.num_extra :]

    def unpack(self, rows: torch.Tensor) -> tuple[npt.NDArray[np.int64], Array | None, Array, Array | None]:
        """Return grid_index (N,), targets or None, predictions (N, O, ...), derivatives (N, O, F) or None."""
        table = rows.numpy()[:, : rows.shape[1] - self.num_extra]
        values = self.num_outputs * int(np.prod(self.field_shape, dtype=np.int64))
        first = 1 + values * self.has_targets
        shape = (len(table), self.num_outputs, *self.field_shape)
        targets = table[:, 1:first].reshape(shape) if self.has_targets else None
        predictions, rest = table[:, first : first + values].reshape(shape), table[:, first + values :]
        jacobian = rest.reshape(len(table), self.num_outputs, self.num_inputs) if self.with_jacobian else None
        return table[:, 0].astype(np.int64), targets, predictions, jacobian


class PredictionSink:
    """Where the root's rows go. The other ranks have one too, which only counts what they drop."""

    def __init__(
        self, network: StoredNetwork, source: SampleSource, path: Path, layout: RowLayout, arithmetic: str,
        written_as: Layout = "auto",
    ) -> None:  # fmt: skip
        self.num_dropped = 0
        self.num_samples = 0
        self.num_outside = np.zeros((2, layout.num_inputs), dtype=np.int64)
        self._network, self._source, self._path, self._layout = network, source, path, layout
        self._sums = {name: ErrorSums() for name in source.target_names if source.has_targets}
        self._arithmetic, self._written_as = arithmetic, written_as
        self._extra = extra_variables(network, source, layout.with_jacobian)
        self._names = icenet_names(network, source)
        self._grid: OutputGrid | None = None
        self._file: GrowingFile | None = None
        self._coordinates: Coordinates | None = None

    def open(self) -> None:
        """Begin the file. For the root. Raises OutputError, DataError, UserError."""
        network, source, with_jacobian = self._network, self._source, self._layout.with_jacobian
        self._coordinates = open_coordinates(source)
        taken = written_names(source, with_jacobian, self._extra)
        self._grid = plan_grid(source, self._coordinates, taken, self._written_as, self._names is not None)
        self._names = None if self._grid else self._names
        variables = variables_of(
            network, source, self._coordinates, self._names, with_jacobian, self._extra, self._grid
        )  # fmt: skip
        attributes = file_attributes(network, source, self._arithmetic)
        dimensions = dimensions_of(source, self._grid)
        # A dimension that can grow is as long as what is written, and only times are written for every level.
        is_fixed = self._grid is not None and not self._grid.has_times
        self._file = GrowingFile(self._path, dimensions, variables, attributes, is_fixed)
        if self._grid is not None:
            self._file.put(self._grid.fixed_values(self._coordinates))
        elif source.kind == "fields":
            self._file.put(self._coordinates.grids)

    def append(self, rows: torch.Tensor, chunk: SampleChunk) -> None:
        """Write the rows of the next chunk. For the root. Raises OutputError, DataError."""
        assert self._file is not None
        assert self._coordinates is not None
        index, targets, predictions, jacobian = self._layout.unpack(rows)
        self.num_samples += len(index)
        records = self._answers(targets, predictions, jacobian)
        records |= dict(zip(self._extra, self._layout.extra_of(rows).T, strict=True))
        if self._grid is not None:
            self._put_on_grid(self._grid, index, records, chunk)
        else:
            self._file.append(_renamed(self._places(index) | records, self._names))

    def _places(self, index: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Return what says where and when the samples of rows are."""
        assert self._coordinates is not None
        records: dict[str, Array] = {} if self._names else {GRID_INDEX: index}
        if self._source.kind == "points":
            records |= self._coordinates.at(index)
        elif self._coordinates.times is not None:
            records[TIME] = self._coordinates.times[index]
        return records

    def _answers(self, targets: Array | None, predictions: Array, jacobian: Array | None) -> dict[str, Array]:
        """Return truth, prediction, error and derivatives of each target, whose errors are added up."""
        records: dict[str, Array] = {}
        for number, target in enumerate(self._source.target_names):
            name, answer = variable_name(target), predictions[:, number]
            records[name + PREDICTED] = answer
            if targets is not None:
                truth = targets[:, number]
                self._sums[target].add(truth, answer - truth)
                records |= {name: truth, name + ERROR: answer - truth}
            if jacobian is not None:
                names = (derivative_name(target, one) for one in self._source.input_names)
                records |= dict(zip(names, jacobian[:, number].T, strict=True))
        return records

    def _put_on_grid(
        self, grid: OutputGrid, index: npt.NDArray[np.int64], records: Mapping[str, Array], chunk: SampleChunk
    ) -> None:
        assert self._file is not None
        assert self._coordinates is not None
        where = grid.place_of(chunk)
        self._file.put(grid.moving_values(self._coordinates, chunk), where)
        for name, values in records.items() if len(index) else ():  # one after the other, for a chunk is large
            self._file.put({name: grid.spread(values, index, chunk)}, where)

    def finish(self, outside: Mapping[str, float]) -> dict[str, ErrorSums]:
        """Complete the file; return the errors of the targets that the data has. For the root.

        `outside` is the share of each input's values outside of the trained range, which the file says too.

        Raises OutputError, and DataError where nothing was predicted.
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
        """Leave nothing unfinished behind."""
        if self._file is not None:
            self._file.abandon()


def _renamed(records: Mapping[str, Array], names: Mapping[str, str] | None) -> dict[str, Array]:
    """Return the records under the names of a fixed layout, without those that it has not."""
    if names is None:
        return dict(records)
    return {names[name]: values for name, values in records.items() if name in names}
