"""Samples that are ready: `inputs` (N, F) and `targets` (N,) or (N, O), or fields (N, F, H, W) and (N, O, H, W)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import decode
from mpitrain.data.files.protocol import FieldFile
from mpitrain.data.random_streams import keyed_uniform
from mpitrain.data.samples import Samples
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.grid import THINNING_STREAM, field_weights
from mpitrain.data.selection.source_files import ReadCounter, SourceFile
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
    has_targets: bool = True

    def read(self, file: FieldFile, record: SourceFile, chunk: SampleChunk, reads: ReadCounter | None) -> Samples:
        """Return the samples of a chunk; every sample of a table is selected, save what thinning takes out."""
        rows = slice(chunk.row_start, chunk.row_stop)
        names = self.target_names if self.has_targets else ()
        inputs = self._read(file, INPUTS, rows, reads)
        targets = self._read(file, TARGETS, rows, reads) if names else inputs[:, :0]
        targets = targets.reshape(len(inputs), len(names), *self.field_shape)
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64) + record.first_time
        samples = Samples(
            inputs=inputs,
            targets=targets,
            grid_index=numbers,
            input_names=self.input_names,
            target_names=names,
            weights=field_weights(inputs, targets) if self.kind == "fields" else None,
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


def is_table(file: FieldFile, without_targets: bool = False) -> bool:
    """Tell whether a file holds samples that are ready; `without_targets`: inputs alone will do.

    Raises DataError for an archive with one half of them, which is no grid either.
    """
    has_inputs, has_targets = INPUTS in file.variables, TARGETS in file.variables
    if has_inputs and without_targets:
        return True
    if has_inputs != has_targets and file.path.suffix in (".npz", ".pt"):
        missing = TARGETS if has_inputs else INPUTS
        raise DataError(f"{file.path}: has no array '{missing}'; give inputs (N, F) and targets (N,) or (N, O)")
    return has_inputs and has_targets


def check_table(file: FieldFile, without_targets: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inputs and targets. Raises DataError where they do not fit.

    Where a table may be, and is, `without_targets`, their shape is (N, 0) or (N, 0, H, W).
    """
    if not is_table(file, without_targets):
        raise DataError(
            f"{file.path}: lacks the arrays inputs (N, F) and targets (N,) or (N, O) that the first file has"
        )
    infos = [file.variables[name] for name in (INPUTS, TARGETS) if name in file.variables]
    for info in infos:
        if not info.is_numeric:
            raise DataError(f"{file.path}: cannot be read: '{info.name}' holds {info.dtype}, numbers are needed")
    inputs, is_empty = infos[0].shape, any(0 in info.shape for info in infos)
    targets = infos[1].shape if len(infos) > 1 else (*inputs[:1], 0, *inputs[2:])
    fits_points = len(inputs) == 2 and len(targets) in (1, 2)
    fits_fields = len(inputs) == len(targets) == 4 and inputs[2:] == targets[2:]
    if not (fits_points or fits_fields) or inputs[:1] != targets[:1] or is_empty:
        raise DataError(
            f"{file.path}: inputs {inputs} and targets {targets} do not fit: (N, F) and (N,) or (N, O), or "
            "(N, F, H, W) and (N, O, H, W), with N > 0 are needed"
        )
    return inputs, targets
