"""The bytes of a checkpoint: encoding, and a reading that refuses whatever is not exactly what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from mpitrain.errors import CheckpointError

TENSORS, MANIFEST, COMMIT = "tensors.safetensors", "manifest.json", "commit.json"
FORMAT_VERSION = 2
_NUMPY_HAS = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool})


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def tensor_sha256(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes, row-major, on the CPU."""
    values = tensor.detach().cpu().contiguous()
    if values.dtype not in _NUMPY_HAS:
        values = values.reshape(-1).view(torch.uint8)
    return sha256(values.numpy().tobytes())


def weights_sha256(parameters: Mapping[str, torch.Tensor]) -> str:
    """Return one hash of named tensors in their order: names, shapes, dtypes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in parameters.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor_sha256(tensor)}\n".encode())
    return digest.hexdigest()


def encode_checkpoint(
    tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[bytes, bytes]:
    """Return the bytes of the tensor file and of the manifest that describes it."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    tensor_bytes = _to_safetensors(on_cpu)
    manifest = {
        "format_version": FORMAT_VERSION,
        "state": dict(state),
        "settings": dict(settings),
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "sha256": tensor_sha256(tensor)}
            for name, tensor in on_cpu.items()
        },
        # The file's own hash covers its header and padding too, where a flipped bit could rename or move a tensor.
        "file_sha256": sha256(tensor_bytes),
    }
    # A line for each value: json's own indentation costs several times as much.
    text = json.dumps(manifest, sort_keys=True, separators=(",\n", ": "), allow_nan=False)
    return tensor_bytes, text.encode() + b"\n"


def _to_safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    # The same bytes; torch's way takes each of many small tensors apart by itself, numpy's lacks bfloat16.
    if any(tensor.dtype not in _NUMPY_HAS for tensor in tensors.values()):
        return bytes(safetensors.torch.save(tensors))
    return bytes(safetensors.numpy.save({name: tensor.numpy() for name, tensor in tensors.items()}))


def encode_commit(manifest_bytes: bytes) -> bytes:
    """Return the commit record of a manifest: its hash, and a hash of the record itself."""
    record = {"manifest_sha256": sha256(manifest_bytes)}
    return _to_json({**record, "record_sha256": sha256(_to_json(record))})


def read_checkpoint(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, Any]]:
    """Return tensors, state and settings of the checkpoint folder `path`, every byte verified.

    Raises CheckpointError naming what is damaged.
    """
    commit, manifest_bytes = _read(path, COMMIT), _read(path, MANIFEST)
    # One record has one spelling: comparing bytes leaves no bit of it unchecked.
    if commit != encode_commit(manifest_bytes):
        raise CheckpointError(f"{path}: damaged ({MANIFEST} or {COMMIT} is not as it was written)")
    manifest = json.loads(manifest_bytes)
    if manifest["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by another version of the format ({manifest['format_version']}, this is {FORMAT_VERSION})"
        )
    tensor_bytes = _read(path, TENSORS)
    if sha256(tensor_bytes) != manifest["file_sha256"]:
        raise CheckpointError(f"{path}: damaged ({TENSORS} is not as it was written)")
    return _verified_tensors(path, tensor_bytes, manifest["tensors"]), manifest["state"], manifest["settings"]


def _verified_tensors(path: Path, content: bytes, expected: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    try:
        tensors: dict[str, torch.Tensor] = safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: damaged ({TENSORS}: {error})") from error
    for name, entry in expected.items():
        if name not in tensors or tensor_sha256(tensors[name]) != entry["sha256"]:
            raise CheckpointError(f"{path}: damaged (tensor '{name}' is not as it was written)")
    return tensors


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        what = "was never finished" if name == COMMIT else "cannot be read"
        raise CheckpointError(f"{path}: the checkpoint {what} ({name}: {error.strerror})") from error


def _to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
