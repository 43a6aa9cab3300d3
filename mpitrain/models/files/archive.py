"""Reader of TorchScript archives, ours, the C++ program's or others, which runs no code in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from mpitrain.models.files.description import TEXTS, ModelDescription, parse_description
from mpitrain.models.files.inert_pickle import StoredObject, StoredStorage, StoredTensor, read_inert
from mpitrain.models.files.record import RECORD
from mpitrain.models.files.zip_parts import LONGEST_NAME, ArchiveError, ZipParts

_MOST_PICKLE_BYTES = 8 * 2**20
_MOST_RECORD_BYTES = 64 * 2**10
_MOST_CODE_BYTES = 4 * 2**20
_DEEPEST, _MOST_ATTRIBUTES = 64, 200_000


@dataclass(frozen=True)
class StoredArchive:
    """Tensors and texts of a file.

    `tensors` are named as in the module's state_dict. `record` is the text that this package wrote about the network,
    not yet parsed. `has_forward`: whether the file contains code that computes outputs.
    """

    tensors: Mapping[str, torch.Tensor]
    description: ModelDescription
    record: bytes | None
    has_forward: bool


def read_archive(path: Path) -> StoredArchive:
    """Read the tensors and texts of a TorchScript file on the CPU; no code in it is run, compiled or compared.

    Raises OSError, or ArchiveError if it is not a TorchScript file, is damaged, or contains anything that modules of
    tensors do not need.
    """
    with path.open("rb") as file:
        parts, root, found = _look_into(file)
        return StoredArchive(_tensors(found, parts), _description(found), _record(parts), _has_forward(root, parts))


def _look_into(file: IO[bytes]) -> tuple[ZipParts, StoredObject, dict[str, object]]:
    """Return an archive's parts, its module, and the attributes of that and of the modules in it, by name."""
    parts = ZipParts(file)
    if parts.size("byteorder") is not None and parts.read("byteorder", 16).strip() != b"little":
        raise ArchiveError("was written on a machine with another byte order than little-endian")
    root = read_inert(parts.read("data.pkl", _MOST_PICKLE_BYTES))
    if not isinstance(root, StoredObject):
        raise ArchiveError("contains no module")
    found = {}
    for number, (name, value) in enumerate(_attributes(root, "", _DEEPEST), 1):
        if number > _MOST_ATTRIBUTES:
            raise ArchiveError(f"contains more than {_MOST_ATTRIBUTES} attributes")
        if not isinstance(value, StoredObject):
            found[name] = value
    return parts, root, found


def _attributes(module: StoredObject, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield the attributes of a module and of the modules in it. A module may contain itself: `depth` ends this."""
    if depth == 0:
        raise ArchiveError(f"contains modules nested more than {_DEEPEST} deep")
    for name, value in (module.attributes or {}).items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise ArchiveError("contains an attribute with an empty, too long or unprintable name")
        yield f"{prefix}{name}", value
        if isinstance(value, StoredObject):
            yield from _attributes(value, f"{prefix}{name}.", depth - 1)


def _tensors(found: Mapping[str, object], parts: ZipParts) -> dict[str, torch.Tensor]:
    storages: dict[str, tuple[StoredStorage, torch.Tensor]] = {}
    tensors = {}
    for name, value in found.items():
        if isinstance(value, StoredTensor):
            storage = value.storage
            known, numbers = storages.get(storage.key) or (storage, _numbers(storage, parts))
            if known != storage:
                raise ArchiveError(f"'data/{storage.key}' is used with two types or lengths")
            storages[storage.key] = known, numbers
            tensors[name] = numbers.as_strided(value.sizes, value.strides, value.offset)
    return tensors


def _numbers(storage: StoredStorage, parts: ZipParts) -> torch.Tensor:
    name, dtype = f"data/{storage.key}", getattr(torch, storage.dtype)
    num_bytes = storage.num_elements * dtype.itemsize
    if parts.size(name) != num_bytes:
        raise ArchiveError(f"'{name}' does not have the {num_bytes} bytes that data.pkl states")
    content = bytearray(parts.read(name, num_bytes))
    if not content:
        return torch.empty(0, dtype=dtype)
    # torch's booleans must be 0 or 1: any other byte becomes True.
    return (
        torch.frombuffer(content, dtype=torch.uint8) != 0
        if dtype == torch.bool
        else torch.frombuffer(content, dtype=dtype)
    )


def _description(found: Mapping[str, object]) -> ModelDescription:
    # In files of other programs, attributes of these names may have any type.
    try:
        return parse_description({name: found[name] for name in TEXTS if isinstance(found.get(name), list)})
    except ValueError as error:
        raise ArchiveError(str(error)) from None


def _record(parts: ZipParts) -> bytes | None:
    name = f"extra/{RECORD}"
    return None if parts.size(name) is None else parts.read(name, _MOST_RECORD_BYTES)


def _has_forward(root: StoredObject, parts: ZipParts) -> bool:
    """Return whether the code of the module's class has a function; the C++ program's files have none.

    Also True if only that code can read the attributes of the module.
    """
    module, _, _ = root.class_name.partition(" ")
    return root.attributes is None or b"def " in parts.head(f"code/{module.replace('.', '/')}.py", _MOST_CODE_BYTES)
