"""Named tensors as bytes: their hashes, and safetensors' format. Of numpy, or of torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from mpitrain.comm import Array

# As manifests and hashes have named types since torch wrote them.
_DTYPE_PREFIX = "torch."


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tensor_sha256(tensor: Array) -> str:
    """Return the SHA-256 of a tensor's bytes, row-major, on the CPU."""
    return sha256(_on_cpu(tensor).tobytes())


def dtype_name(tensor: Array) -> str:
    """Return the name of a tensor's type in manifests and hashes, such as torch.float32, whoever holds it."""
    return str(tensor.dtype) if not isinstance(tensor, np.ndarray) else f"{_DTYPE_PREFIX}{tensor.dtype}"


def weights_sha256(parameters: Mapping[str, Array]) -> str:
    """Return one hash of named tensors in their order: names, shapes, dtypes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in parameters.items():
        digest.update(f"{name} {tuple(tensor.shape)} {dtype_name(tensor)} {tensor_sha256(tensor)}\n".encode())
    return digest.hexdigest()


def _on_cpu(tensor: Array) -> Any:
    """Return a numpy array of the same bytes; of a type that numpy lacks, the bytes alone."""
    if isinstance(tensor, np.ndarray):
        return tensor
    values = tensor.detach().cpu().contiguous()
    try:
        return values.numpy()
    except TypeError:  # such as bfloat16
        import torch

        return values.reshape(-1).view(torch.uint8).numpy()


def to_safetensors(tensors: Mapping[str, Array], texts: Mapping[str, str] | None = None) -> bytes:
    """Return named tensors in safetensors' format, with texts by their names."""
    header = None if texts is None else dict(texts)
    values = {name: _on_cpu(tensor) for name, tensor in tensors.items()}
    if all(values[name].dtype.itemsize == tensor.itemsize for name, tensor in tensors.items()):
        return bytes(safetensors.numpy.save({name: np.asarray(one, order="C") for name, one in values.items()}, header))
    from safetensors.torch import save

    return bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, header))


def from_safetensors(content: bytes) -> dict[str, Array]:
    """Return what `to_safetensors` stored, as numpy arrays; torch's tensors where numpy lacks a type.

    Raises SafetensorError.
    """
    try:
        # Copies: an array must not be read-only, nor keep the whole file.
        return {name: array.copy() for name, array in safetensors.numpy.load(content).items()}
    except (KeyError, TypeError):  # such as bfloat16
        from safetensors.torch import load

        return load(content)
