"""Tables of ready samples: `inputs` (N, F), `targets` (N,) or (N, O), or fields (N, F, H, W) and (N, O, H, W)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import decode
from mpitrain.data.files.variable import FieldFile, check_claims
from mpitrain.data.formats.open import OnFile, opened
from mpitrain.data.samples import Samples
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.grid import field_weights
from mpitrain.data.selection.notes import notes_of_file
from mpitrain.data.selection.settings import WITHOUT_TARGETS, Selection, in_files
from mpitrain.data.selection.source import SampleLayout, SampleSource, SourceFile
from mpitrain.errors import DataError

INPUTS, TARGETS = "inputs", "targets"
FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class TableLayout(SampleLayout):
    """Properties that all tables of a source share. Can be pickled."""

    field_shape: tuple[int, ...] = ()
    is_grid = False

    def read(self, source: SampleSource, chunk: SampleChunk) -> Samples:
        """Return the samples of a chunk; every sample of a table is selected, except those that thinning removes."""
        file, record = source.handle(chunk.file), source.files[chunk.file]
        rows = slice(chunk.row_start, chunk.row_stop)
        names = self.read_targets
        inputs = self._read(file, INPUTS, rows)
        targets = self._read(file, TARGETS, rows) if names else inputs[:, :0]
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
        if self.selection.thin_fraction >= 1.0:
            return samples
        return samples.take(np.flatnonzero(self.thinned(numbers)))

    def references(self, name: str) -> tuple[str, ...]:
        """See `SampleLayout.references`."""
        return (name,)

    def first_level(self, source: SampleSource, name: str) -> npt.NDArray[Any]:
        """Raise NotImplementedError: a table has no grid."""
        raise NotImplementedError(f"{source.files[0].path}: a table of samples has no grid")

    def _read(self, file: FieldFile, name: str, rows: slice) -> npt.NDArray[Any]:
        info = file.variables[name]
        stored = file.read_stored(name, (rows, *[slice(None)] * (len(info.shape) - 1)))
        # astype copies even if the type stays the same: a view of the file's array would be shared by all epochs.
        return decode(stored, info).astype(self.selection.dtype)


def is_table(file: FieldFile, without_targets: bool = False) -> bool:
    """Return whether a file is a table of ready samples; with `without_targets` the inputs alone are enough.

    Raises DataError if an archive has only one of the two arrays, or if one of them must not be read.
    """
    for name in (INPUTS, TARGETS):
        if name in file.refused:
            raise DataError(f"{file.path}: variable '{name}' is not read: {file.refused[name]}")
    has_inputs, has_targets = INPUTS in file.variables, TARGETS in file.variables
    if has_inputs and without_targets:
        return True
    if has_inputs != has_targets and file.path.suffix in (".npz", ".pt"):
        missing = TARGETS if has_inputs else INPUTS
        raise DataError(f"{file.path}: has no array '{missing}'; give inputs (N, F) and targets (N,) or (N, O)")
    return has_inputs and has_targets


def open_table(
    selection: Selection, paths: Sequence[Path], target_bytes: int, num_predicted: int | None, on_file: OnFile
) -> SampleSource:
    """Open files of ready samples (see `opening.open_source`)."""
    records: list[SourceFile] = []
    chunks: list[SampleChunk] = []
    notes: dict[str, Path] = {}
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for path in paths:
        with opened(path, on_file, selection.reading) as file:
            found = check_table(file, num_predicted is not None)
            arrays = (file.variables[name] for name in (INPUTS, TARGETS) if name in file.variables)
            for line in notes_of_file(file, arrays):
                notes.setdefault(line, path)
            shapes = shapes or found
            _check_same_table(file, found, shapes, records)
            status, first = path.stat(), sum(record.num_times for record in records)
            records.append(
                SourceFile(path, status.st_size, status.st_mtime_ns, found[0][0], first, reading=selection.reading)
            )
            chunks += _table_chunks(file, len(records) - 1, target_bytes)
    layout = _table_layout(selection, *(shapes or ((), ())), num_predicted)
    notices = [] if layout.has_targets else [f"{paths[0]}: no array 'targets': {WITHOUT_TARGETS}"]
    return SampleSource(
        files=tuple(records),
        chunks=tuple(chunks),
        layout=layout,
        num_points=sum(record.num_times for record in records),
        grid_shape=(layout.field_shape[0], layout.field_shape[1]) if layout.field_shape else (1, 1),
        units=dict.fromkeys((*layout.input_names, *layout.target_names), ""),
        notices=(*notices, *in_files(notes), *_unused_with_a_table(selection, paths[0])),
    )


def _unused_with_a_table(selection: Selection, path: Path) -> Iterator[str]:
    """Yield a notice for each setting that needs a grid."""
    domain = selection.domain
    settings = {
        "domain.mask_mode": domain.mask_mode,
        "domain.min_ice_concentration": domain.min_ice_concentration,
        "domain.mask": domain.mask,
        "domain.latitude_range": domain.latitude_range,
        "domain.longitude_range": domain.longitude_range,
        "training.area_weighted_loss": selection.weighs_loss or None,
        "data.area_weighted": (selection.is_area_weighted and not selection.weighs_loss) or None,
    }
    for key, value in settings.items():
        if value is not None:
            yield f"{key}: not used with {path}, a table of samples without a grid: all of its rows are samples"


def _check_same_table(file: FieldFile, found: Any, expected: Any, records: list[SourceFile]) -> None:
    tails = [[shape[1:] for shape in shapes] for shapes in (found, expected)]
    if tails[0] != tails[1]:
        raise DataError(
            f"{file.path}: inputs {found[0]} and targets {found[1]} do not have the columns of {records[0].path}, "
            f"{expected[0]} and {expected[1]}; use files with the same columns"
        )


def _table_chunks(file: FieldFile, number: int, target_bytes: int) -> Iterator[SampleChunk]:
    infos = [file.variables[name] for name in (INPUTS, TARGETS) if name in file.variables]
    count = infos[0].shape[0]
    unit = int(np.lcm.reduce([min(info.chunk_shape[0], count) if info.chunk_shape else 1 for info in infos]))
    values = sum(int(np.prod(info.shape[1:])) for info in infos)
    step = max(1, target_bytes // (FLOAT32_BYTES * values * unit)) * unit
    for first in range(0, count, step):
        yield SampleChunk(number, 0, 1, first, min(first + step, count))


def _table_layout(
    selection: Selection, inputs: tuple[int, ...], targets: tuple[int, ...], num_predicted: int | None
) -> TableLayout:
    is_fields = len(inputs) == 4
    if selection.kind == "fields" and not is_fields:
        raise DataError(f"data.samples=fields: inputs {inputs} are points; set data.samples=points")
    num_targets = targets[1] if len(targets) > 1 else 1
    has_targets = num_targets > 0
    num_targets = num_targets or num_predicted or 1
    return TableLayout(
        selection=selection,
        kind="fields" if is_fields else "points",
        input_names=_column_names("inputs", inputs[1], selection.input_names),
        target_names=_column_names("targets", num_targets, selection.target_names),
        rule_text="all samples, thinned by data.thin_fraction",
        field_shape=inputs[2:],
        has_targets=has_targets,
    )


def _column_names(array: str, count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return tuple(f"{array}[:, {column}]" for column in range(count))
    if len(names) != count:
        key = "input_variables" if array == "inputs" else "output_variables"
        raise DataError(
            f"variables.{key} has {len(names)} names, the array {array} has {count} columns; name all columns or none"
        )
    return tuple(names)


def check_table(file: FieldFile, without_targets: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inputs and targets. Raises DataError if they do not fit together.

    With `without_targets` a table may lack targets; their shape is then (N, 0) or (N, 0, H, W).
    """
    if not is_table(file, without_targets):
        raise DataError(
            f"{file.path}: lacks the arrays inputs (N, F) and targets (N,) or (N, O) that the first file has"
        )
    infos = [file.variables[name] for name in (INPUTS, TARGETS) if name in file.variables]
    for info in infos:
        if not info.is_numeric:
            raise DataError(f"{file.path}: cannot be read: '{info.name}' holds {info.dtype}, numbers are needed")
    check_claims(infos, file.path)
    inputs, is_empty = infos[0].shape, any(0 in info.shape for info in infos)
    targets = infos[1].shape if len(infos) > 1 else (*inputs[:1], 0, *inputs[2:])
    fits_points = len(inputs) == 2 and len(targets) in (1, 2)
    fits_fields = len(inputs) == len(targets) == 4 and inputs[2:] == targets[2:]
    if not (fits_points or fits_fields) or inputs[:1] != targets[:1] or is_empty:
        raise DataError(
            f"{file.path}: inputs {inputs} and targets {targets} do not fit: expected (N, F) and (N,) or (N, O), or "
            "(N, F, H, W) and (N, O, H, W), with N > 0"
        )
    return inputs, targets
