"""Zarr stores in folders, versions 2 and 3, through zarr-python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.variable import Slices, VariableInfo, plain_attributes
from mpitrain.errors import DataError, MissingDependencyError

_MARKS = ("zarr.json", ".zgroup", ".zmetadata", ".zarray")
# How xarray names the dimensions in version 2, which has no place of its own for them.
_DIMENSIONS = "_ARRAY_DIMENSIONS"


def is_zarr(path: Path) -> bool:
    """Tell whether a folder is a Zarr store."""
    return path.is_dir() and any((path / mark).is_file() for mark in _MARKS)


class ZarrStore:
    """One open store."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises DataError where it is no Zarr group, MissingDependencyError without zarr."""
        try:
            import zarr
        except ImportError as error:
            raise MissingDependencyError(f"{path}: Zarr needs zarr-python: python -m pip install 'zarr>=3'") from error
        self.path = path
        self.refused: dict[str, str] = {}
        try:
            group: Any = zarr.open_group(str(path), mode="r", use_consolidated=False)
            self._arrays: dict[str, Any] = {
                name: one for name, one in group.members(max_depth=None) if hasattr(one, "shape")
            }
            self.variables = {name: _describe(name, one) for name, one in self._arrays.items()}
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as Zarr ({error}); is it a complete store of a group?") from error
        self._complete: set[str] = set()

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored. Raises DataError where a chunk of it is missing or damaged."""
        try:
            self._check_complete(name)
            return np.asarray(self._arrays[name][slices])
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise DataError(
                f"{self.path}: variable '{name}' cannot be read ({error}); is the store complete?"
            ) from error

    def close(self) -> None:
        """Forget the arrays."""
        self._arrays = {}

    def _check_complete(self, name: str) -> None:
        """Refuse missing chunks where what is read in their place would pass for measurements."""
        if name in self._complete:
            return
        array, marker = self._arrays[name], self.variables[name].attributes.get("_FillValue")
        stored, expected = array.nchunks_initialized, array.nchunks
        is_marked = marker is not None or (array.dtype.kind == "f" and np.isnan(array.fill_value or 0.0))
        if stored < expected and not is_marked:
            raise DataError(
                f"{self.path}: variable '{name}': {expected - stored} of its {expected} chunks are missing, and would "
                f"be read as {array.fill_value}; write them, or give it a _FillValue that marks what is missing"
            )
        self._complete.add(name)


def _describe(name: str, array: Any) -> VariableInfo:
    metadata, attributes = array.metadata, dict(array.attrs)
    named = attributes.pop(_DIMENSIONS, None) or getattr(metadata, "dimension_names", None) or [""] * len(array.shape)
    plain = plain_attributes(attributes.items())
    # In version 2 the fill value marks what is missing, in version 3 it is a value like any other (xarray's rule).
    if getattr(metadata, "zarr_format", 3) == 2 and array.fill_value is not None and array.dtype.kind in "iuf":
        plain.setdefault("_FillValue", array.fill_value.item())
    return VariableInfo(
        name=name,
        dimensions=tuple(one or "" for one in named),
        shape=tuple(int(size) for size in array.shape),
        dtype=np.dtype(array.dtype).str,
        attributes=plain,
        chunk_shape=tuple(array.chunks) if array.shape else None,
    )
