"""Hand-made history files of a few points, for tests that need to know every value."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np

from mpitrain.data.describe.names import CICE_INPUTS

GRID, FIELD = ("nj", "ni"), ("time", "nj", "ni")
NJ, NI = 2, 3


def tiny_variables(num_times: int = 1) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """All variables of a valid file: dimensions and values; feature c at flat index i holds 100 c + i."""
    i = np.arange(num_times * NJ * NI, dtype=np.float32).reshape(num_times, NJ, NI)
    variables = {
        "ULAT": (GRID, np.array([[70, 70, 30], [80, -70, 50]], dtype=np.float32)),
        "ULON": (GRID, np.zeros((NJ, NI), dtype=np.float32)),
        "umask": (GRID, np.array([[1, 0, 1], [1, 1, 1]], dtype=np.float32)),
        "aice_h": (FIELD, np.broadcast_to(np.float32(0.5), (num_times, NJ, NI))),
    }
    return variables | {name: (FIELD, i + 100 * c) for c, name in enumerate(CICE_INPUTS)}


def write_tiny_history(path: Path, num_times: int = 1, without: str = "", **changed: tuple) -> Path:
    """Write a valid file but for `changed` (name: (dimensions, values)) and the variable `without`."""
    variables = {**tiny_variables(num_times), **changed}
    variables.pop(without, None)
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, size in (("time", num_times), ("nj", NJ), ("ni", NI), ("other", 4)):
            dataset.createDimension(name, size)
        for name, (dimensions, values) in variables.items():
            dataset.createVariable(name, values.dtype.str[1:], dimensions)[:] = values
    return path
