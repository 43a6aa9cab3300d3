"""Files of whole arrays: `.npz` of numpy, and `.pt` of torch with nothing in it but tensors."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.variable import Slices, VariableInfo
from mpitrain.errors import DataError, MissingDependencyError, one_line, reason_of

# torch.load(weights_only=True) could be made to run code before this version (CVE-2025-32434 and its successors).
_SAFE_TORCH = (2, 10)


class ArrayFile:
    """Named arrays, held in memory once they are asked for: one block each, as they can only be read whole."""

    def __init__(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]], whole: bool) -> None:
        """Offer `arrays`; `whole` says that a part of one costs as much as all of it."""
        self.path = path
        self.refused: dict[str, str] = {}
        self._arrays = arrays
        self.variables = {
            name: VariableInfo(
                name, ("",) * array.ndim, array.shape, array.dtype.str, chunk_shape=array.shape if whole else None
            )
            for name, array in arrays.items()
        }

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of an array; a view, which nobody may change."""
        return self._arrays[name][slices]

    def close(self) -> None:
        """Forget the arrays."""
        self._arrays = {}


def open_npz(path: Path) -> ArrayFile:
    """Open an `.npz` file. Raises DataError where it is none, is damaged, or holds objects, which could run code."""
    try:
        # numpy leaves a file open that is no archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return ArrayFile(path, {one_line(name): archive[name] for name in archive.files}, whole=True)
    except Exception as error:  # of a damaged file, numpy and zipfile raise whatever they stumble over
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); give an .npz file of plain arrays") from error


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
        arrays = _arrays(content, path)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: holds more than tensors, which could run code, and is not opened; "
            "save a plain dict of tensors with torch.save, or give .npz"
        ) from error
    except Exception as error:  # of a file that is made to deceive, torch's reader raises whatever it stumbles over
        raise DataError(f"{path}: cannot be read ({reason_of(error)}); give a .pt file of a dict of tensors") from error
    return ArrayFile(path, arrays, whole=True)


def _refuse_compressed(path: Path) -> None:
    """Refuse what torch never writes: what is compressed may be a thousand times larger than its file."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist() if "/data" in part.filename):
            raise DataError(
                f"{path}: holds compressed numbers, which torch never writes; save it again with torch.save"
            )


def _arrays(content: object, path: Path) -> dict[str, npt.NDArray[Any]]:
    import torch

    if not isinstance(content, dict) or not content or not all(map(torch.is_tensor, content.values())):
        raise DataError(
            f"{path}: holds no dict of tensors; save one with torch.save({{'inputs': x, 'targets': y}}, ...)"
        )
    largest = max(tensor.numel() * tensor.element_size() for tensor in content.values())
    if largest > path.stat().st_size:
        raise DataError(f"{path}: claims {largest} bytes, more than the file has; save tensors that are contiguous")
    # Names are printed: a terminal must not obey them.
    return {one_line(str(name)): _to_numpy(tensor) for name, tensor in content.items()}


def _to_numpy(tensor: Any) -> npt.NDArray[Any]:
    import torch

    tensor = tensor.detach()
    # numpy has no bfloat16
    array: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).resolve_conj().numpy()
    return array
