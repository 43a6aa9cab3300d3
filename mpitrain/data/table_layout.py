"""Samples that are ready: `inputs` (N, F) and `targets` (N,) or (N, O), or fields (N, F, H, W) and (N, O, H, W)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.chunk_plan import SampleChunk
from mpitrain.data.grid_layout import THINNING_STREAM
from mpitrain.data.keyed_random import keyed_uniform
from mpitrain.data.readers.decoding import decode
from mpitrain.data.readers.protocol import FieldFile
from mpitrain.data.samples import Samples
from mpitrain.data.source_files import ReadCounter, SourceFile
from mpitrain.errors import DataError

INPUTS, TARGETS = "inputs", "targets"


@dataclass(frozen=True)
class TableLayout:
    """What all tables of a source have in common. Can be pickled."""

    kind: str
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    dtype: str
    seed: int
    thin_fraction: float
    field_shape: tuple[int, ...] = ()

    def read(self, file: FieldFile, record: SourceFile, chunk: SampleChunk, reads: ReadCounter | None) -> Samples:
        """Return the samples of a chunk; every sample of a table is selected, save what thinning takes out."""
        rows = slice(chunk.row_start, chunk.row_stop)
        inputs, targets = (self._read(file, name, rows, reads) for name in (INPUTS, TARGETS))
        targets = targets.reshape(len(targets), len(self.target_names), *self.field_shape)
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64) + record.first_time
        samples = Samples(
            inputs=inputs,
            targets=targets,
            grid_index=numbers,
            input_names=self.input_names,
            target_names=self.target_names,
            weights=np.isfinite(targets).astype(np.float32) if self.kind == "fields" else None,
        )
        if self.thin_fraction >= 1.0:
            return samples
        kept = keyed_uniform((self.seed, THINNING_STREAM), len(samples), int(numbers[0])) < self.thin_fraction
        return samples.take(np.flatnonzero(kept))

    def _read(self, file: FieldFile, name: str, rows: slice, reads: ReadCounter | None) -> npt.NDArray[Any]:
        info = file.variables[name]
        if reads is not None:
            length = info.chunk_shape[0] if info.chunk_shape else 1
            blocks = range(rows.start // length, -(-rows.stop // length))
            reads.update((str(file.path), name, (block,)) for block in blocks)
        stored = file.read_stored(name, (rows, *[slice(None)] * (len(info.shape) - 1)))
        # A copy where nothing changed type: a view of the file's own array would be shared by all epochs.
        return decode(stored, info).astype(self.dtype)


def is_table(file: FieldFile) -> bool:
    """Tell whether a file holds samples that are ready."""
    return INPUTS in file.variables and TARGETS in file.variables


def check_table(file: FieldFile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inputs and targets. Raises DataError where they do not fit."""
    if not is_table(file):
        raise DataError(
            f"{file.path}: lacks the arrays inputs (N, F) and targets (N,) or (N, O) that the first file has"
        )
    inputs, targets = file.variables[INPUTS], file.variables[TARGETS]
    for info in (inputs, targets):
        if not info.is_numeric:
            raise DataError(f"{file.path}: cannot be read: '{info.name}' holds {info.dtype}, numbers are needed")
    fits_points = len(inputs.shape) == 2 and len(targets.shape) in (1, 2)
    fits_fields = len(inputs.shape) == len(targets.shape) == 4 and inputs.shape[2:] == targets.shape[2:]
    if not (fits_points or fits_fields) or inputs.shape[:1] != targets.shape[:1] or 0 in inputs.shape + targets.shape:
        raise DataError(
            f"{file.path}: inputs {inputs.shape} and targets {targets.shape} do not fit: (N, F) and (N,) or (N, O), or "
            "(N, F, H, W) and (N, O, H, W), with N > 0 are needed"
        )
    return inputs.shape, targets.shape
