"""Functions for both numpy arrays and torch tensors. Torch is loaded for tensors only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.errors import MissingDependencyError

Array = Any
"""A numpy array or a torch tensor."""


def stack(parts: Sequence[Array]) -> Array:
    """Stack `parts`, all of the same shape and type, along a new axis 0."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(list(parts))


def concatenate(parts: Sequence[Array]) -> Array:
    """Concatenate `parts`, all of the same type, along axis 0."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def host_array(array: Array) -> npt.NDArray[Any]:
    """Return the values as a numpy array, without a copy if they are on the CPU.

    Parameters
    ----------
    array : ndarray or Tensor
        Values on any device; a tensor's dtype must exist in numpy (not bfloat16).

    Returns
    -------
    ndarray
        Same shape and dtype. `array` itself if it is a numpy array; for a CPU tensor an array that shares its memory.
        Gradients are not tracked.
    """
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.detach().cpu().numpy())


def require_torch(purpose: str) -> None:
    """Load torch.

    Parameters
    ----------
    purpose : str
        The feature or file that needs torch: the subject of the error message.

    Raises
    ------
    MissingDependencyError
        Torch is not installed or cannot be imported. On this rank only: on several ranks call it by
        `Ranks.on_all_ranks`.
    """
    if not has_torch():
        raise MissingDependencyError(f"{purpose} needs torch, which is not installed: pip install torch")


def has_torch() -> bool:
    """Load torch and return whether it is installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def to_tensor(array: npt.NDArray[Any], device: str) -> Array:
    """Return a torch tensor of the values on `device`.

    Parameters
    ----------
    array : ndarray
        Values; torch warns if they are read-only.
    device : str
        Torch name of the device, for example "cpu" or "cuda:0".

    Returns
    -------
    Tensor
        Same shape and dtype. On the CPU it shares the memory of `array`; on a GPU it is a copy.
    """
    import torch

    return torch.from_numpy(array).to(device)


def address_of(array: Array) -> int:
    """Return the address of the first byte of `array`.

    Parameters
    ----------
    array : ndarray or Tensor
        Array on the CPU. The caller keeps it alive as long as the address is used.

    Returns
    -------
    int
        Address of the first element, for compiled code.
    """
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def set_values(target: Array, values: Array) -> None:
    """Copy `values` into `target` in place.

    Parameters
    ----------
    target : ndarray or Tensor
        Array to overwrite, on any device; it keeps its dtype.
    values : ndarray or Tensor
        New values, of the same shape (other shapes are broadcast if possible). One of the two may be a numpy array and
        the other a tensor.

    Notes
    -----
    Values are converted to the dtype and the device of `target`. Gradients are not tracked.
    """
    if isinstance(target, np.ndarray):
        target[...] = host_array(values)
        return
    import torch

    with torch.no_grad():
        target.copy_(torch.as_tensor(values))
