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
    """Return the values as a numpy array, without a copy if they are on the CPU."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.detach().cpu().numpy())


def require_torch(purpose: str) -> None:
    """Load torch. Raises MissingDependencyError if it is not installed; `purpose` is the subject of the message."""
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
    """Return a torch tensor of the values on `device`; on the CPU it shares the array's memory."""
    import torch

    return torch.from_numpy(array).to(device)


def address_of(array: Array) -> int:
    """Return the address of the first byte of `array`, which must be on the CPU."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def set_values(target: Array, values: Array) -> None:
    """Copy `values` into `target` in place. Shapes must match; one may be a numpy array and the other a tensor."""
    if isinstance(target, np.ndarray):
        target[...] = host_array(values)
        return
    import torch

    with torch.no_grad():
        target.copy_(torch.as_tensor(values))
