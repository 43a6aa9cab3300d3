"""The file format of a checkpoint: encoding, and decoding that verifies every byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors

from mpitrain.comm import Array
from mpitrain.errors import CheckpointError
from mpitrain.models.files.named_tensors import (
    dtype_name,
    from_safetensors,
    sha256,
    tensor_sha256,
    to_safetensors,
)
from mpitrain.models.files.named_tensors import weights_sha256 as weights_sha256
from mpitrain.train.checkpoint.manifest import parse_manifest

TENSORS, MANIFEST, COMMIT = "tensors.safetensors", "manifest.json", "commit.json"
FORMAT_VERSION = 2


def encode_checkpoint(
    tensors: Mapping[str, Array], state: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[bytes, bytes]:
    """Return the bytes of the tensor file and of the manifest that describes it."""
    tensor_bytes = to_safetensors(tensors)
    manifest = {
        "format_version": FORMAT_VERSION,
        "state": dict(state),
        "settings": dict(settings),
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": dtype_name(tensor), "sha256": tensor_sha256(tensor)}
            for name, tensor in tensors.items()
        },
        # The hash of the whole file covers header and padding too: a flipped bit there could rename or move a tensor.
        "file_sha256": sha256(tensor_bytes),
    }
    # One line per value without `indent`, which is several times slower.
    text = json.dumps(manifest, sort_keys=True, separators=(",\n", ": "), allow_nan=False)
    return tensor_bytes, text.encode() + b"\n"


def encode_commit(manifest_bytes: bytes) -> bytes:
    """Return the commit record of a manifest: the hash of the manifest, and a hash of the record itself."""
    record = {"manifest_sha256": sha256(manifest_bytes)}
    return _to_json({**record, "record_sha256": sha256(_to_json(record))})


def read_checkpoint(path: Path) -> tuple[dict[str, Array], dict[str, Any], dict[str, Any]]:
    """Return tensors, state and settings of the checkpoint folder `path`, every byte verified.

    Raises CheckpointError that names the damaged file or tensor.
    """
    commit, manifest_bytes = _read(path, COMMIT), _read(path, MANIFEST)
    # The encoding of a record is unique, so comparing the bytes verifies every bit of it.
    if commit != encode_commit(manifest_bytes):
        raise CheckpointError(f"{path}: damaged ({MANIFEST} or {COMMIT} is not as it was written)")
    manifest = parse_manifest(path, manifest_bytes)
    if manifest["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by another version of the format ({manifest['format_version']}, this is {FORMAT_VERSION})"
        )
    tensor_bytes = _read(path, TENSORS)
    if sha256(tensor_bytes) != manifest["file_sha256"]:
        raise CheckpointError(f"{path}: damaged ({TENSORS} is not as it was written)")
    return _verified_tensors(path, tensor_bytes, manifest["tensors"]), manifest["state"], manifest["settings"]


def _verified_tensors(path: Path, content: bytes, expected: Mapping[str, Any]) -> dict[str, Array]:
    try:
        tensors = from_safetensors(content)
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
        problem = "was never finished" if name == COMMIT else "cannot be read"
        raise CheckpointError(f"{path}: the checkpoint {problem} ({name}: {error.strerror})") from error


def _to_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
