"""A CICE history file: 2-D grids (nj, ni) and history fields (time, nj, ni), read flat and row-major as float32.

Flat index of a grid point: i = j * ni + ii. Over several times: t * nj * ni + i.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.netcdf_classic import read_variable_ends
from mpitrain.errors import DataError

FloatArray = npt.NDArray[np.float32]

LATITUDE, LONGITUDE, MASK = "ULAT", "ULON", "umask"
TARGET = "aice_h"
INPUTS = ("Tair_h", "Tsfc_h", "sst_h", "sss_h", "hs_h", "hi_h", "sice_h")
# CICE writes 1e30 on land; anything near it is no measurement.
LARGEST_VALID = 1e29


class HistoryFile:
    """One open history file. Values come as the file holds them: no scaling, no masking of fill values."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self._path = path
        self._dataset = dataset
        self._size_bytes = path.stat().st_size
        self._ends = read_variable_ends(path)
        dataset.set_auto_maskandscale(False)
        self.grid_shape = self._variable(LATITUDE, dimensions=2).shape
        self.num_times: int = self._variable(TARGET, dimensions=3).shape[0]

    def grid(self, name: str) -> FloatArray:
        """Return a 2-D grid variable, flat, shape (nj * ni,). Raises DataError if it is missing or of another shape."""
        variable = self._variable(name, dimensions=2)
        self._check_shape(name, variable.shape, self.grid_shape)
        return np.asarray(variable[:], dtype=np.float32).reshape(-1)

    def field(self, name: str) -> FloatArray:
        """Return a history field, flat (time * nj * ni,). Raises DataError if it is missing or of another shape."""
        variable = self._variable(name, dimensions=3)
        self._check_shape(name, variable.shape, (self.num_times, *self.grid_shape))
        return np.asarray(variable[:], dtype=np.float32).reshape(-1)

    def _variable(self, name: str, dimensions: int) -> Any:
        if name not in self._dataset.variables:
            raise DataError(
                f"{self._path}: no variable '{name}'; a CICE history file needs "
                f"{', '.join((LATITUDE, LONGITUDE, MASK, TARGET, *INPUTS))}; this one has "
                f"{', '.join(self._dataset.variables) or 'none'}"
            )
        variable = self._dataset.variables[name]
        if variable.ndim != dimensions:
            expected = "(nj, ni)" if dimensions == 2 else "(time, nj, ni)"
            raise DataError(f"{self._path}: variable '{name}' has shape {variable.shape}, expected {expected}")
        if self._ends.get(name, 0) > self._size_bytes:
            raise DataError(
                f"{self._path}: cannot be read to the end: variable '{name}' ends at byte {self._ends[name]}, the file "
                f"at {self._size_bytes}; is the file complete?"
            )
        if getattr(variable.dtype, "kind", "") not in ("f", "i", "u"):
            raise DataError(f"{self._path}: variable '{name}' holds {variable.datatype}, expected numbers")
        return variable

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise DataError(
                f"{self._path}: variable '{name}' has shape {shape}, expected {expected} as "
                f"'{LATITUDE}' and '{TARGET}' have"
            )


@contextmanager
def open_history(path: Path) -> Iterator[HistoryFile]:
    """Open a history file. Raises DataError when it is missing, unreadable, not NetCDF, or lacks grid or target."""
    import netCDF4

    if not path.is_file():
        raise DataError(f"{path}: no such file; set data.data_path to a CICE history file")
    try:
        dataset = netCDF4.Dataset(str(path))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read as NetCDF ({error.strerror or error}); is it a complete NetCDF file?"
        ) from error
    try:
        with dataset:
            yield HistoryFile(path, dataset)
    except (OSError, RuntimeError, EOFError) as error:  # netCDF4 reports a damaged block with either of the first
        raise DataError(f"{path}: cannot be read to the end ({error}); is the file complete?") from error
