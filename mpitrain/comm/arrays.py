"""Functions that take numpy arrays and torch tensors alike. Torch is loaded for tensors only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.errors import MissingDependencyError

Array = Any
"""A numpy array or a torch tensor."""


def stack(parts: Sequence[Array]) -> Array:
    """Return the parts, all of one shape and kind, along a new axis 0."""
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(list(parts))


def concatenate(parts: Sequence[Array]) -> Array:
    """Return the parts, all of one kind, one after the other along axis 0."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def host_array(array: Array) -> npt.NDArray[Any]:
    """Return the values as a numpy array, without a copy where they are on the CPU."""
    if isinstance(array, np.ndarray):
        return array
    return np.asarray(array.detach().cpu().numpy())


def require_torch(what: str) -> None:
    """Load torch. Raises MissingDependencyError where it is not installed: `what` says what it is for."""
    if not has_torch():
        raise MissingDependencyError(f"{what} needs torch, which is not installed: pip install torch")


def has_torch() -> bool:
    """Load torch, and tell whether it is installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def to_tensor(array: npt.NDArray[Any], device: str) -> Array:
    """Return a torch tensor of the values on `device`; on the CPU the same memory."""
    import torch

    return torch.from_numpy(array).to(device)


def address_of(array: Array) -> int:
    """Return the address of the first byte of `array`, which is on the CPU."""
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def set_values(target: Array, values: Array) -> None:
    """Replace the values of `target` in place by `values` of its shape, which may be of the other kind."""
    if isinstance(target, np.ndarray):
        target[...] = host_array(values)
        return
    import torch

    with torch.no_grad():
        target.copy_(torch.as_tensor(values))
