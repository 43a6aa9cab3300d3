"""Wrappers of an open file that add or replace variables: arrays in memory, and selections along a dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables

# One call may read up to this many times the selected values, because a call costs as much as reading many values.
_MOST_READ = 8


class Overlay:
    """An open file with additional variables from arrays in memory, which replace the file's own of the same name.

    With `is_stored` the arrays are values of the file, and count in its checksum. `notes` are by variable name.
    """

    def __init__(
        self,
        file: FieldFile,
        arrays: Iterable[tuple[VariableInfo, npt.NDArray[Any]]] = (),
        is_stored: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        found = list(arrays)
        self._file, self._arrays, self._is_stored = file, {info.name: array for info, array in found}, is_stored
        self._notes, self._sums = notes or {}, dict[str, int]()
        self.variables = Variables({**file.variables, **{info.name: info for info, _ in found}})

    @property
    def path(self) -> Path:
        """See `FieldFile`."""
        return self._file.path

    @property
    def refused(self) -> Mapping[str, str]:
        """See `FieldFile`."""
        return self._file.refused

    @property
    def stored_sum(self) -> StoredSum:
        """See `FieldFile`."""
        return self._file.stored_sum

    @stored_sum.setter
    def stored_sum(self, value: StoredSum) -> None:
        self._file.stored_sum = value

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        if name not in self._arrays:
            return self._file.read_stored(name, slices)
        array = self._arrays[name]
        if self._is_stored and name not in self._sums:
            self._sums[name] = self.stored_sum.add_whole(array)
        elif self._is_stored:
            self.stored_sum.add_again(self._sums[name])
        return array[slices]

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return self._notes.get(name) or (None if name in self._arrays else self._file.note_of(name))

    def close(self) -> None:
        """See `FieldFile`."""
        self._file.close()


class SelectedAlong(Overlay):
    """An open file with all variables along a dimension selected at some positions, and the dimension renamed."""

    def __init__(
        self, file: FieldFile, dimension: str, name: str, positions: npt.NDArray[np.int64], without: str = ""
    ) -> None:
        """Select `positions` (N,) along `dimension`, and call it `name`; the variable `without` stays unchanged."""
        super().__init__(file)
        self._positions, self._axes = positions, dict[str, int]()
        for own, info in file.variables.items():
            if dimension in info.dimensions and (info.is_numeric or info.is_text) and own != without:
                axis = self._axes[own] = info.dimensions.index(dimension)
                dimensions, shape = list(info.dimensions), list(info.shape)
                dimensions[axis], shape[axis] = name, len(positions)
                self.variables[own] = replace(
                    info, dimensions=tuple(dimensions), shape=tuple(shape), chunk_shape=None, unlimited=frozenset()
                )

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        axis = self._axes.get(name)
        if axis is None:
            return super().read_stored(name, slices)
        slices = (*slices, *[slice(None)] * (axis + 1 - len(slices)))
        wanted = self._positions[slices[axis]]
        first, stop = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)

        def of_part(part: slice) -> npt.NDArray[Any]:
            return super(SelectedAlong, self).read_stored(name, (*slices[:axis], part, *slices[axis + 1 :]))

        if stop - first == len(wanted) and np.array_equal(wanted, np.arange(first, stop)):
            return of_part(slice(first, stop))
        if stop - first <= _MOST_READ * len(wanted):
            return np.take(of_part(slice(first, stop)), wanted - first, axis=axis)
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        return np.concatenate([of_part(slice(int(run[0]), int(run[-1]) + 1)) for run in runs], axis=axis)
