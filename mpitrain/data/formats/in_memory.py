"""Variables of a Python program for other processes: a folder with a file for each array, and a list of what they are.

In /dev/shm the ranks map the arrays into their memory, and share one copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import numbers_of_array
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.variable import Slices, VariableInfo, plain_attributes
from mpitrain.errors import one_line

VARIABLES_FILE = "variables.json"


@dataclass(frozen=True)
class GivenVariable:
    """A variable of a Python program: an array, of numpy or dask, and the names of its dimensions; without: by place.

    `note` is to be known of it; `refused` is why it is not read.
    """

    name: str
    values: Any = None
    dimensions: tuple[str, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    refused: str | None = None


def write_variables(folder: Path, variables: Iterable[GivenVariable]) -> None:
    """Write the variables, and what they are, into an empty folder; dask's arrays are computed chunk by chunk."""
    listed: list[dict[str, Any]] = []
    for one in variables:
        said: dict[str, Any] = {"name": one_line(one.name), "note": one.note, "refused": one.refused}
        if one.refused is None:
            array, of_times = _store(one.values, folder / f"{len(listed)}.npy")
            dimensions = ("",) * array.ndim if one.dimensions is None else one.dimensions
            said |= {"dimensions": dimensions, "shape": array.shape, "dtype": array.dtype.str}
            said["attributes"] = plain_attributes({**one.attributes, **of_times}.items())
        listed.append(said)
    (folder / VARIABLES_FILE).write_text(json.dumps(listed), encoding="utf-8")


def open_variables(path: Path) -> ArrayFile:
    """Open the list that `write_variables` has written."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    held = {number: one for number, one in enumerate(listed) if one["refused"] is None}
    numbers = list(held)
    file = _SharedArrays(path, map(_info, held.values()), lambda place: _load(path.parent / f"{numbers[place]}.npy"))
    file.refused = {one["name"]: one["refused"] for one in listed if one["refused"] is not None}
    file.notes = {one["name"]: one["note"] for one in held.values() if one["note"] is not None}
    return file


class _SharedArrays(ArrayFile):
    """Arrays of which a part is read without the rest."""

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        if name not in self._arrays:
            self._arrays[name] = self.load(name)
        part: npt.NDArray[Any] = np.asarray(self._arrays[name][slices])
        self.stored_sum.add_values(part)
        return part


def _info(said: Mapping[str, Any]) -> VariableInfo:
    attributes = {key: tuple(one) if isinstance(one, list) else one for key, one in said["attributes"].items()}
    return VariableInfo(said["name"], tuple(said["dimensions"]), tuple(said["shape"]), said["dtype"], attributes)


def _load(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except ValueError:  # no byte can be mapped
        array = np.load(path)
    return array


def _store(values: Any, path: Path) -> tuple[npt.NDArray[Any], Mapping[str, str]]:
    """Write an array; return an array of its shape and type, and the attributes of times."""
    is_lazy = hasattr(values, "dask") and values.dtype.kind in "biuf" and 0 not in values.shape
    if is_lazy and not isinstance(values._meta, np.ma.MaskedArray):
        import dask.array

        stored = np.lib.format.open_memmap(path, mode="w+", dtype=values.dtype, shape=values.shape)
        dask.array.store(values, stored, lock=False)
        return stored, {}
    array, of_times = numbers_of_array(values)
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    np.save(path, array, allow_pickle=False)
    return array, of_times
