"""What an output file is follows the ending of its name, in every command and from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mpitrain.errors import UserError

PREDICTIONS = {"netcdf": (".nc", ".nc4", ".h5"), "csv": (".csv",), "parquet": (".parquet",), "zarr": (".zarr",)}
TABLES = {"npz": (".npz",), "hdf5": (".h5", ".hdf5"), "folder": ("",)}


def kind_of_output(path: Path, endings: Mapping[str, Sequence[str]], advice: str = "") -> str:
    """Return the kind of file that a path's ending names, by the endings of each kind; "" is a name without one.

    Raises UserError, which names all of them, for another ending.
    """
    found = next((kind for kind, of_kind in endings.items() if path.suffix in of_kind), None)
    if found is not None:
        return found
    known = dict.fromkeys(ending or "none (a folder)" for of_kind in endings.values() for ending in of_kind)
    raise UserError(f"{path}: the ending says what is written: give {', '.join(known)}{advice}")
