"""Selected samples of a file: inputs and target of each point that the domain's rules admit.

N  selected samples      F  input features
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from mpitrain.data.history_file import INPUTS, LARGEST_VALID, LATITUDE, MASK, TARGET, HistoryFile, open_history
from mpitrain.data.selection import select_points
from mpitrain.errors import DataError

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Samples in file order: `inputs` (N, F), `targets` (N,), float32, and the flat `grid_index` (N,) of each."""

    inputs: FloatArray
    targets: FloatArray
    grid_index: IndexArray
    feature_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, positions: IndexArray) -> Samples:
        """Return the samples at `positions` as a copy, in that order."""
        return Samples(self.inputs[positions], self.targets[positions], self.grid_index[positions], self.feature_names)


def read_samples(path: Path, pole: str, is_clean: bool) -> Samples:
    """Read the selected samples of a `.nc` history file or of an `.npz` file (`inputs` (N, F), `targets` (N,)).

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
        return Samples(inputs, history.field(TARGET)[selected], selected, INPUTS)


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
            f"{path}: cannot be read ({error}); an .npz file needs the arrays inputs (N, F) and targets (N,)"
        ) from error
    targets = targets.reshape(-1)
    if inputs.ndim != 2 or len(inputs) != len(targets) or len(targets) == 0:
        raise DataError(
            f"{path}: inputs {inputs.shape} and targets {targets.shape} do not fit: (N, F) and (N,) "
            f"with N > 0 are needed"
        )
    names = tuple(f"inputs[:, {column}]" for column in range(inputs.shape[1]))
    return Samples(inputs, targets, np.arange(len(targets)), names)


def valid_rows(samples: Samples) -> npt.NDArray[np.bool_]:
    """Tell which samples (N,) hold measurements only: no NaN, no infinity, no fill value, in inputs and target."""
    valid = np.abs(samples.targets) < LARGEST_VALID
    for column in range(samples.inputs.shape[1]):
        valid &= np.abs(samples.inputs[:, column]) < LARGEST_VALID
    return valid


def first_invalid_feature(samples: Samples) -> str | None:
    """Name the first feature that holds a NaN, an infinity or a fill value; None if all are measurements."""
    for name, column in zip((*samples.feature_names, TARGET), (*samples.inputs.T, samples.targets), strict=True):
        if not bool(np.all(np.abs(column) < LARGEST_VALID)):
            return name
    return None
