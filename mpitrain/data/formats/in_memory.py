"""Variables of a Python program in one file for other processes: the arrays, then their description in JSON.

If the file is in /dev/shm, the ranks map it into their memory and share one copy.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import numbers_of_array, unmasked
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.variable import Slices, VariableInfo, plain_attributes
from mpitrain.errors import one_line, reason_of

VARIABLES_FILE = "variables.bin"
"""Name of the file that `write_variables` writes."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)
_ALIGNMENT, _WRITTEN_BYTES, _LENGTH = 64, 2**23, struct.Struct("<Q")


@dataclass(frozen=True)
class GivenVariable:
    """A variable of a Python program: an array and its dimension names.

    Attributes
    ----------
    name : str
        Name of the variable.
    values : array of numpy or dask, or anything that numpy converts
        Masked values become NaN, dates days since 1970-01-01, and durations days.
    dimensions : tuple of str or None
        One name for each axis of `values`; None (default): dimensions are recognised by position.
    attributes : mapping of str to object
        Attributes, those of the CF conventions among them.
    note : str or None
        Note for the user.
    refused : str or None
        Reason why the variable is not read; None (default) if it is.
    """

    name: str
    values: Any = None
    dimensions: tuple[str, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    refused: str | None = None


def write_variables(folder: Path, variables: Iterable[GivenVariable]) -> None:
    """Write the variables and their description into one file of a folder.

    A variable that cannot be read is listed as refused, with the reason.

    Parameters
    ----------
    folder : Path
        Existing folder; its file `VARIABLES_FILE` is replaced.
    variables : iterable of GivenVariable
        The variables, in the order of the file.

    Raises
    ------
    OSError
        The file cannot be written, for example because the disk is full.

    Notes
    -----
    Not collective. Values keep their type, except that masked integers, masked booleans and numpy's long doubles become
    float64. Dask arrays of numbers are computed and written chunk by chunk. The file holds the arrays, each at a
    multiple of 64 bytes; their description in JSON; and its length as a little-endian 64-bit integer.
    """
    listed: list[dict[str, Any]] = []
    with (folder / VARIABLES_FILE).open("wb+") as file:
        for one in variables:
            entry: dict[str, Any] = {"name": one_line(one.name), "note": one.note, "refused": one.refused}
            if one.refused is None:
                try:
                    entry |= _store(one, file)
                except Exception as error:  # lazy data raise the exceptions of their own reader
                    if isinstance(error, OSError) and error.errno in _NO_ROOM:
                        raise
                    entry["refused"] = f"its values cannot be read ({reason_of(error)})"
            listed.append(entry)
        file.seek(0, os.SEEK_END)
        text = json.dumps(listed).encode()
        file.write(text + _LENGTH.pack(len(text)))


def open_variables(path: Path) -> ArrayFile:
    """Open a file that `write_variables` wrote."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = _LENGTH.unpack(content[-_LENGTH.size :].tobytes())
    listed = json.loads(content[-_LENGTH.size - length : -_LENGTH.size].tobytes())
    readable = [one for one in listed if one["refused"] is None]
    file = _SharedArrays(path, map(_info, readable), lambda place: _array(content, readable[place]))
    file.refused = {one["name"]: one["refused"] for one in listed if one["refused"] is not None}
    file.notes = {one["name"]: one["note"] for one in readable if one["note"] is not None}
    return file


class _SharedArrays(ArrayFile):
    """Arrays in a memory map: a part is read without the rest."""

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        part: npt.NDArray[Any] = np.asarray(self.load(name)[slices])
        self.stored_sum.add_values(part)
        return part


def _info(entry: Mapping[str, Any]) -> VariableInfo:
    attributes = {key: tuple(one) if isinstance(one, list) else one for key, one in entry["attributes"].items()}
    return VariableInfo(entry["name"], tuple(entry["dimensions"]), tuple(entry["shape"]), entry["dtype"], attributes)


def _array(content: npt.NDArray[np.uint8], entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    stop = entry["offset"] + int(np.prod(shape)) * dtype.itemsize
    found: npt.NDArray[Any] = content[entry["offset"] : stop].view(dtype).reshape(shape)
    return found


def _store(one: GivenVariable, file: BinaryIO) -> dict[str, Any]:
    """Write the array of a variable, and return its entry in the description."""
    file.seek(0, os.SEEK_END)
    offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
    values = one.values
    of_times: Mapping[str, str] = {}
    is_lazy = hasattr(values, "dask") and values.dtype.kind in "biuf" and 0 not in values.shape
    if is_lazy and not np.any(np.isnan(values.shape)):
        import dask.array

        dtype = values.dtype if values.dtype.kind == "f" else np.result_type(values.dtype, np.float64)
        is_masked = isinstance(values._meta, np.ma.MaskedArray)
        part = _Part(file.name, offset, (dtype if is_masked else values.dtype).str, values.shape)
        part.reserve(file)
        dask.array.store(values, part, lock=False)  # type: ignore[arg-type]
        shape, stored = values.shape, np.dtype(part.dtype)
    else:
        array, of_times = numbers_of_array(values)
        array = array.astype(np.float64) if array.dtype == np.longdouble else array
        if array.dtype.hasobject:
            raise TypeError(f"objects, such as {array.reshape(-1)[:1].tolist()!r:.40}")
        file.seek(offset)
        step = max(1, _WRITTEN_BYTES * len(array) // max(1, array.nbytes)) if array.ndim else 1
        for start in range(0, len(array), step) if array.ndim else ():
            file.write(np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data)
        if not array.ndim:
            file.write(array.tobytes())
        shape, stored = array.shape, array.dtype
    dimensions = ("",) * len(shape) if one.dimensions is None else one.dimensions
    attributes = plain_attributes({**one.attributes, **of_times}.items())
    return {"offset": offset, "dimensions": dimensions, "shape": shape, "dtype": stored.str, "attributes": attributes}


@dataclass(frozen=True)
class _Part:
    """An array in the file, into which several processes may write blocks; each write opens the file."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def reserve(self, file: BinaryIO) -> None:
        """Reserve room for the array: writing to a mapped page without room would kill the process. Raises OSError."""
        file.flush()
        os.posix_fallocate(file.fileno(), self.offset, int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize)

    def __setitem__(self, key: Any, block: Any) -> None:
        whole = np.memmap(self.path, dtype=self.dtype, mode="r+", offset=self.offset, shape=self.shape)
        values = unmasked(block)
        if values.dtype.kind == "f" and whole.dtype.kind != "f":
            raise ValueError("blocks of integers are masked, and the array's metadata does not declare a mask")
        whole[key] = values
        whole.flush()
