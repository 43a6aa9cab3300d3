"""Hashes of named tensors, and their conversion from and to the safetensors format; tensors of numpy or torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from mpitrain.comm import Array

# Manifests and hashes use torch's names of dtypes, also for numpy arrays.
_DTYPE_PREFIX = "torch."


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tensor_sha256(tensor: Array) -> str:
    """Return the SHA-256 of a tensor's bytes in row-major order."""
    return sha256(_on_cpu(tensor).tobytes())


def dtype_name(tensor: Array) -> str:
    """Return a tensor's dtype as named in manifests and hashes, such as torch.float32, also for numpy arrays."""
    return str(tensor.dtype) if not isinstance(tensor, np.ndarray) else f"{_DTYPE_PREFIX}{tensor.dtype}"


def weights_sha256(parameters: Mapping[str, Array]) -> str:
    """Return one hash of named tensors in their order.

    Parameters
    ----------
    parameters : mapping of str to ndarray or Tensor
        On any device. An array and a tensor of the same name, shape, dtype and values give the same hash.

    Returns
    -------
    str
        SHA-256 in hexadecimal of the names, shapes, dtypes and bytes (row-major order).
    """
    digest = hashlib.sha256()
    for name, tensor in parameters.items():
        digest.update(f"{name} {tuple(tensor.shape)} {dtype_name(tensor)} {tensor_sha256(tensor)}\n".encode())
    return digest.hexdigest()


def _on_cpu(tensor: Array) -> Any:
    """Return a numpy array of the same bytes; its dtype is uint8 if numpy lacks the tensor's dtype."""
    if isinstance(tensor, np.ndarray):
        return tensor
    values = tensor.detach().cpu().contiguous()
    try:
        return values.numpy()
    except TypeError:  # such as bfloat16
        import torch

        return values.reshape(-1).view(torch.uint8).numpy()


def to_safetensors(tensors: Mapping[str, Array], texts: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors in the safetensors format, with `texts` as metadata."""
    header = None if texts is None else dict(texts)
    values = {name: _on_cpu(tensor) for name, tensor in tensors.items()}
    if all(values[name].dtype.itemsize == tensor.itemsize for name, tensor in tensors.items()):
        return bytes(safetensors.numpy.save({name: np.asarray(one, order="C") for name, one in values.items()}, header))
    from safetensors.torch import save

    return bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, header))


def from_safetensors(content: bytes) -> dict[str, Array]:
    """Return the tensors that `to_safetensors` stored, as numpy arrays, or as torch tensors if numpy lacks a dtype.

    Raises SafetensorError if `content` is invalid.
    """
    try:
        # Copies: the arrays must be writable and must not keep the whole file in memory.
        return {name: array.copy() for name, array in safetensors.numpy.load(content).items()}
    except (KeyError, TypeError):  # such as bfloat16
        from safetensors.torch import load

        return load(content)
