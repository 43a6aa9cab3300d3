"""Files of named arrays that are read whole: `.npz` of numpy, `.pt` of torch, and results of a user's own reader."""

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
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables, plain_attributes, reason_too_large
from mpitrain.errors import DataError, MissingDependencyError, one_line, reason_of

# Before this version a crafted file could run code in torch.load(weights_only=True) (CVE-2025-32434 and others).
_SAFE_TORCH = (2, 10)


class ArrayFile:
    """Named arrays that can only be read whole: each is loaded when a part of it is first read, and kept in memory."""

    def __init__(self, path: Path, infos: Iterable[VariableInfo], load: Callable[[int], npt.NDArray[Any]]) -> None:
        """Set the variables; `load` reads an array by its index in `infos`, and its type may differ from `infos`."""
        self.path, self.stored_sum = path, StoredSum()
        self.refused: dict[str, str] = {}
        self.variables = Variables((info.name, info) for info in infos)
        self._numbers = {name: number for number, name in enumerate(self.variables)}
        self._load, self._arrays, self._sums = load, dict[str, npt.NDArray[Any]](), dict[str, int]()
        self.notes: dict[str, str] = {}
        self.text_column: Callable[[str, int | None], Any] | None = None

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of an array, a view that must not be modified. Raises DataError if it cannot be read."""
        if name not in self._arrays:
            array = self.load(name)
            if array.shape != self.variables[name].shape:
                raise DataError(
                    f"{self.path}: the shape of variable '{name}' differs from its header; write the file again"
                )
            self._arrays[name], self._sums[name] = array, self.stored_sum.add_whole(array)
        else:
            self.stored_sum.add_again(self._sums[name])
        return self._arrays[name][slices]

    def load(self, name: str) -> npt.NDArray[Any]:
        """Return a whole array, numbers or text, without adding it to the checksum."""
        return self._load(self._numbers[name])

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return self.notes.get(name)

    def close(self) -> None:
        """Release the arrays."""
        self._arrays = {}


def open_npz(path: Path) -> ArrayFile:
    """Open an `.npz` file; arrays of Python objects are refused, because unpickling them could run code.

    Raises DataError if the file is not an `.npz` file or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {one_line(part.filename.removesuffix(".npy")): part for part in archive.infolist()}
            found = {name: _info_of_member(archive, name, part, path) for name, part in members.items()}
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise exceptions of many types for a damaged file
        raise _unreadable_npz(path, error) from error
    parts = [members[name] for name, info in found.items() if info]
    file = ArrayFile(path, filter(None, found.values()), lambda number: _load_member(path, parts[number]))
    file.refused = {name: "it holds objects, which could run code" for name, info in found.items() if info is None}
    return file


def _info_of_member(archive: zipfile.ZipFile, name: str, part: zipfile.ZipInfo, path: Path) -> VariableInfo | None:
    """Return the description of an array from its header, without reading its values; None for an array of objects.

    Raises DataError, ValueError or OSError if the header is damaged or declares more bytes than the file can contain.
    """
    with archive.open(part) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            return None
        claimed = math.prod(shape) * dtype.itemsize
        if claimed > part.file_size:
            raise ValueError(f"array '{name}' claims {claimed} bytes, the archive holds {part.file_size} for it")
    if reason := reason_too_large(claimed, lambda: path.stat().st_size):
        raise DataError(f"{path}: variable '{name}' is not read: {reason}")
    dimensions = ("",) * len(shape)
    if attributes := numbers_of_array(np.empty(0, dtype))[1]:
        return VariableInfo(name, dimensions, shape, "<f8", dict(attributes), chunk_shape=shape)
    return VariableInfo(name, dimensions, shape, dtype.str, chunk_shape=shape)


def _load_member(path: Path, part: zipfile.ZipInfo) -> npt.NDArray[Any]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(part) as file:
            array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # zipfile verifies the checksum at the end of the member
            return numbers_of_array(array)[0]
    except Exception as error:
        raise _unreadable_npz(path, error) from error


def _unreadable_npz(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read ({reason_of(error)}); give an .npz file of plain arrays")


def open_pt(path: Path) -> ArrayFile:
    """Open a `.pt` file of a dict of tensors. Raises DataError for any other content, which could run code.

    Raises MissingDependencyError if the version of torch does not read it safely.
    """
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        raise MissingDependencyError(
            f"{path}: torch {torch.__version__} does not read .pt files safely; pip install 'torch>=2.10', or give .npz"
        )
    try:
        _refuse_compressed(path)
        with warnings.catch_warnings():
            # torch warns about a TorchScript archive, which contains code, before it raises.
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
        tensors = _tensors(content, path)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: holds objects other than tensors, which could run code, and is not opened; "
            "save a plain dict of tensors with torch.save, or give .npz"
        ) from error
    except Exception as error:  # torch raises exceptions of many types for a malicious or damaged file
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); give a .pt file of a dict of tensors") from error
    infos = [_info_of_tensor(name, tensor) for name, tensor in tensors.items()]
    values = list(tensors.values())
    return ArrayFile(path, infos, lambda number: _to_numpy(values[number]))


def _refuse_compressed(path: Path) -> None:
    """Raise DataError for compressed data: torch never writes it, and it may unpack to 1000 times the file size."""
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
        raise DataError(f"{path}: claims a tensor of {largest} bytes, more than the file has; save contiguous tensors")
    if not all(tensor.layout is torch.strided for tensor in content.values()):
        raise DataError(f"{path}: holds sparse tensors; save dense ones")
    # Names are printed: escape characters that could change the state of a terminal.
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
    """Return `content` as an open file: a mapping of names to arrays, or a `FieldFile`, which is returned unchanged.

    An array may be given as (dimensions, array) or (dimensions, array, attributes), as in xarray. Raises TypeError or
    ValueError for anything else.
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
        raise ValueError(f"'{name}' has {array.ndim} dimensions and {len(names)} dimension names; name each dimension")
    known = plain_attributes({**dict(attributes), **of_times}.items())
    return VariableInfo(name, names, array.shape, array.dtype.str, known, chunk_shape=array.shape), array


def _names(dimensions: Any) -> tuple[str, ...]:
    return (dimensions,) if isinstance(dimensions, str) else tuple(map(str, dimensions))
