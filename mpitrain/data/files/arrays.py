"""Whole arrays: of `.npz` of numpy, of `.pt` of torch with nothing in it but tensors, and of a reader of the user's."""

from __future__ import annotations

import math
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import numbers_of_array
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables, plain_attributes, why_not_there
from mpitrain.errors import DataError, MissingDependencyError, one_line, reason_of

# torch.load(weights_only=True) could be made to run code before this version (CVE-2025-32434 and its successors).
_SAFE_TORCH = (2, 10)


class ArrayFile:
    """Named arrays that can only be read whole: each is read when a part of it is asked for first, and kept."""

    def __init__(self, path: Path, infos: Iterable[VariableInfo], load: Callable[[int], npt.NDArray[Any]]) -> None:
        """Offer arrays; `load` reads one by its number. Its values need not have the type that its info tells."""
        self.path, self.stored_sum = path, StoredSum()
        self.refused: dict[str, str] = {}
        self.variables = Variables((info.name, info) for info in infos)
        self._numbers = {name: number for number, name in enumerate(self.variables)}
        self._load, self._arrays, self._sums = load, dict[str, npt.NDArray[Any]](), dict[str, int]()
        self.notes: dict[str, str] = {}
        self.text_column: Callable[[str, int | None], Any] | None = None

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of an array; a view, which nobody may change. Raises DataError where it cannot be read."""
        if name not in self._arrays:
            array = self.load(name)
            if array.shape != self.variables[name].shape:
                raise DataError(f"{self.path}: variable '{name}' has other values than its header says; write it again")
            self._arrays[name], self._sums[name] = array, self.stored_sum.add_whole(array)
        else:
            self.stored_sum.add_again(self._sums[name])
        return self._arrays[name][slices]

    def load(self, name: str) -> npt.NDArray[Any]:
        """Return an array, text too, which does not count in the checksum."""
        return self._load(self._numbers[name])

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return self.notes.get(name)

    def close(self) -> None:
        """Forget the arrays."""
        self._arrays = {}


def open_npz(path: Path) -> ArrayFile:
    """Open an `.npz` file; arrays of objects, which could run code, are `refused`, and the others read.

    Raises DataError where it is none or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one_line(part.filename.removesuffix(".npy")): part for part in archive.infolist()}
            found = {name: _info_of_member(archive, name, part, path) for name, part in members.items()}
    except DataError:
        raise
    except Exception as error:  # of a damaged file, numpy and zipfile raise whatever they stumble over
        raise _unreadable_npz(path, error) from error
    parts = [members[name] for name, info in found.items() if info]
    file = ArrayFile(path, filter(None, found.values()), lambda number: _load_member(path, parts[number]))
    file.refused = {name: "it holds objects, which could run code" for name, info in found.items() if info is None}
    return file


def _info_of_member(archive: zipfile.ZipFile, name: str, part: zipfile.ZipInfo, path: Path) -> VariableInfo | None:
    """Return what the header of an array says, whose values are not read; None for an array of objects.

    Raises DataError, ValueError and OSError.
    """
    with archive.open(part) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            return None
        claimed = math.prod(shape) * dtype.itemsize
        if claimed > part.file_size:
            raise ValueError(f"array '{name}' claims {claimed} bytes, the archive holds {part.file_size} of it")
    if reason := why_not_there(claimed, lambda: path.stat().st_size):
        raise DataError(f"{path}: variable '{name}' is not read: {reason}")
    dimensions = ("",) * len(shape)
    if attributes := numbers_of_array(np.empty(0, dtype))[1]:
        return VariableInfo(name, dimensions, shape, "<f8", dict(attributes), chunk_shape=shape)
    return VariableInfo(name, dimensions, shape, dtype.str, chunk_shape=shape)


def _load_member(path: Path, part: zipfile.ZipInfo) -> npt.NDArray[Any]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(part) as file:
            array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # at its end, zipfile compares the checksum
            return numbers_of_array(array)[0]
    except Exception as error:
        raise _unreadable_npz(path, error) from error


def _unreadable_npz(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read ({reason_of(error)}); give an .npz file of plain arrays")


def open_pt(path: Path) -> ArrayFile:
    """Open a `.pt` file that holds a dict of tensors. Raises DataError for anything else in it: it could run code."""
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        raise MissingDependencyError(
            f"{path}: torch {torch.__version__} does not read .pt files safely; pip install 'torch>=2.10' or give .npz"
        )
    try:
        _refuse_compressed(path)
        with warnings.catch_warnings():
            # torch warns of a TorchScript archive, which is code, before it refuses it.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = _tensors(content, path)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: holds more than tensors, which could run code, and is not opened; "
            "save a plain dict of tensors with torch.save, or give .npz"
        ) from error
    except Exception as error:  # of a file that is made to deceive, torch's reader raises whatever it stumbles over
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); give a .pt file of a dict of tensors") from error
    infos = [_info_of_tensor(name, tensor) for name, tensor in tensors.items()]
    values = list(tensors.values())
    return ArrayFile(path, infos, lambda number: _to_numpy(values[number]))


def _refuse_compressed(path: Path) -> None:
    """Refuse what torch never writes: what is compressed may be a thousand times larger than its file."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist() if "/data" in part.filename):
            raise DataError(
                f"{path}: holds compressed numbers, which torch never writes; save it again with torch.save"
            )


def _tensors(content: object, path: Path) -> dict[str, Any]:
    import torch

    if not isinstance(content, dict) or not content or not all(map(torch.is_tensor, content.values())):
        raise DataError(
            f"{path}: holds no dict of tensors; save one with torch.save({{'inputs': x, 'targets': y}}, ...)"
        )
    largest = max(tensor.numel() * tensor.element_size() for tensor in content.values())
    if largest > path.stat().st_size:
        raise DataError(f"{path}: claims {largest} bytes, more than the file has; save tensors that are contiguous")
    if not all(tensor.layout is torch.strided for tensor in content.values()):
        raise DataError(f"{path}: holds sparse tensors; save dense ones")
    # Names are printed: a terminal must not obey them.
    return {one_line(str(name)): tensor.detach() for name, tensor in content.items()}


def _info_of_tensor(name: str, tensor: Any) -> VariableInfo:
    shape = tuple(tensor.shape)
    return VariableInfo(
        name, ("",) * len(shape), shape, _to_numpy(tensor[:0] if shape else tensor).dtype.str, chunk_shape=shape
    )


def _to_numpy(tensor: Any) -> npt.NDArray[Any]:
    import torch

    # numpy has no bfloat16
    return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).resolve_conj().numpy())


def file_of(path: Path, content: Any) -> FieldFile:
    """Return `content` as an open file: a mapping of names to arrays, or a `FieldFile`, which is returned as it is.

    An array may come as (dimensions, array) or (dimensions, array, attributes), as xarray takes it. Raises TypeError
    and ValueError for anything else.
    """
    if not isinstance(content, Mapping):
        if not all(hasattr(content, name) for name in ("variables", "refused", "read_stored", "close")):
            raise TypeError(f"returned {type(content).__name__}; return a mapping of names to arrays")
        file: FieldFile = content
        return file
    found = [_variable(one_line(str(name)), given) for name, given in content.items()]
    return ArrayFile(path, [info for info, _ in found], lambda number: found[number][1])


def _variable(name: str, given: Any) -> tuple[VariableInfo, npt.NDArray[Any]]:
    dimensions, values, attributes = None, given, {}
    if isinstance(given, tuple):
        dimensions, values, attributes = (*given, {})[:3]
    array, of_times = numbers_of_array(values)
    names = ("",) * array.ndim if dimensions is None else _names(dimensions)
    if len(names) != array.ndim:
        raise ValueError(f"'{name}' has {array.ndim} axes and {len(names)} names of dimensions; name each axis")
    known = plain_attributes({**dict(attributes), **of_times}.items())
    return VariableInfo(name, names, array.shape, array.dtype.str, known, chunk_shape=array.shape), array


def _names(dimensions: Any) -> tuple[str, ...]:
    return (dimensions,) if isinstance(dimensions, str) else tuple(map(str, dimensions))
