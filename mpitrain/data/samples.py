"""Samples in memory: what is known of each, what is wanted of it, and where it came from.

N  samples      F  input features      O  targets      H, W  rows and columns of a field
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from mpitrain.data.history_file import INPUTS, LARGEST_VALID, LATITUDE, MASK, TARGET, HistoryFile, open_history
from mpitrain.data.selection.selected_points import select_points
from mpitrain.errors import DataError

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """N samples in the order of their source, points or whole fields.

    `inputs` (N, F) or (N, F, H, W) and `targets` (N, O) or (N, O, H, W), float32; what is no measurement is NaN.
    `weights` (N, 1, H, W) or (N, O, H, W) says how much each target counts, 0 on land; None: all count 1.
    `grid_index` (N,) int64 is each sample's position in its source: t * nj * ni + j * ni + i for points, t for fields.
    `area_weights` (N,) or (N, H, W), where the statistics are weighted: how much each point counts in them.
    """

    inputs: FloatArray
    targets: FloatArray
    grid_index: IndexArray
    input_names: tuple[str, ...]
    target_names: tuple[str, ...] = (TARGET,)
    weights: FloatArray | None = None
    area_weights: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, positions: IndexArray) -> Samples:
        """Return the samples at `positions` as a copy, in that order."""
        return self.changed(lambda column: np.take(column, positions, axis=0))

    def changed(self, change: Callable[[Any], Any]) -> Samples:
        """Return samples whose arrays are `change` of these ones: row by row the same for all of them."""
        values: dict[str, Any] = {name: change(column) for name, column in self.columns().items()}
        return replace(self, **values)

    def columns(self) -> dict[str, Any]:
        """Return the arrays that are there, by name; axis 0 of each counts the samples."""
        names = ("inputs", "targets", "grid_index", "weights", "area_weights")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts (at least one), in their order; names and shapes must agree."""
    columns = [part.columns() for part in parts]
    joined: dict[str, Any] = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    return parts[0] if len(parts) == 1 else replace(parts[0], **joined)


def read_samples(path: Path, pole: str, is_clean: bool) -> Samples:
    """Read the selected samples of a `.nc` history file, or of an `.npz` file: `inputs` (N, F), `targets` (N, O).

    Every sample of an `.npz` file is selected. Raises DataError when the file cannot serve or nothing is selected.
    """
    if path.suffix == ".npz":
        return _read_npz(path)
    with open_history(path) as history:
        selected = _select_from(history, pole, is_clean)
        if len(selected) == 0:
            raise DataError(_nothing_selected(path, pole, is_clean))
        inputs = np.empty((len(selected), len(INPUTS)), dtype=np.float32)
        for column, name in enumerate(INPUTS):
            inputs[:, column] = history.field(name)[selected]
        return Samples(inputs, history.field(TARGET)[selected][:, None], selected, INPUTS)


def _select_from(history: HistoryFile, pole: str, is_clean: bool) -> IndexArray:
    aice = history.field(TARGET)
    latitude, mask = (np.tile(history.grid(name), history.num_times) for name in (LATITUDE, MASK))
    return np.flatnonzero(select_points(latitude, mask, aice, pole, is_clean))


def _nothing_selected(path: Path, pole: str, is_clean: bool) -> str:
    rule = "ocean (umask 1) beyond 40 degrees with 0 < aice <= 1" if is_clean else "beyond 60 degrees"
    domain = f"domain.pole={pole}, domain.clean_data={str(is_clean).lower()}"
    return f"{path}: no point is selected by {domain} ({rule}); change these or the file"


def _read_npz(path: Path) -> Samples:
    if not path.is_file():
        raise DataError(f"{path}: no such file; set data.data_path to an existing file")
    try:
        # numpy leaves a file open that is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            inputs, targets = (np.asarray(archive[name], dtype=np.float32) for name in ("inputs", "targets"))
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); an .npz file needs the arrays inputs (N, F) and targets (N,) or (N, O)"
        ) from error
    targets = targets.reshape(-1, 1) if targets.ndim == 1 else targets
    if targets.ndim != 2 or inputs.ndim != 2 or len(inputs) != len(targets) or len(targets) == 0:
        raise DataError(
            f"{path}: inputs {inputs.shape} and targets {targets.shape} do not fit: (N, F) and (N,) or (N, O) "
            f"with N > 0 are needed"
        )
    names, target_names = (
        tuple(f"{name}[:, {column}]" for column in range(array.shape[1]))
        for name, array in (("inputs", inputs), ("targets", targets))
    )
    return Samples(inputs, targets, np.arange(len(targets)), names, target_names)


def valid_rows(samples: Samples) -> npt.NDArray[np.bool_]:
    """Tell which samples (N,) can be trained on.

    A point must hold measurements only: no NaN, no infinity, no fill value. A field needs one target that counts.
    """
    if samples.inputs.ndim > 2:
        counts = is_measured(samples.targets)
        if samples.weights is not None:
            counts = np.logical_and(counts, samples.weights > 0)
        return np.asarray(counts.any(axis=tuple(range(1, counts.ndim))))
    valid = np.ones(len(samples), dtype=bool)
    for column in (*samples.inputs.T, *samples.targets.T):
        valid &= is_measured(column)
    return valid


def is_measured(values: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Tell which values are measurements: neither NaN, nor infinite, nor a fill value; same shape."""
    measured: npt.NDArray[np.bool_] = np.abs(values) < LARGEST_VALID
    return measured


def missing_of(samples: Samples) -> list[int]:
    """Return for each input and target (F + O) how many values are no measurement."""
    return [
        int(array[:, column].size - np.count_nonzero(is_measured(array[:, column])))
        for array in (samples.inputs, samples.targets)
        for column in range(array.shape[1])
    ]


def first_invalid_feature(samples: Samples) -> str | None:
    """Name the first input or target of point samples that holds a NaN, an infinity or a fill value; None if none."""
    columns = (*samples.inputs.T, *samples.targets.T)
    for name, column in zip((*samples.input_names, *samples.target_names), columns, strict=True):
        if not bool(np.all(is_measured(column))):
            return name
    return None
