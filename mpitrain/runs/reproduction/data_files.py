"""Hashes of the files that a run reads, computed by all ranks, and their comparison with recorded ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.durable_files import NOT_STORED, is_in_temporary_folder
from mpitrain.errors import DataError

_BLOCK_BYTES = 1 << 20
# Larger data is hashed only on request, because hashing takes long.
MOST_BYTES_UNASKED = 64 * 2**30

FileRecord = dict[str, Any]
"""`path` (absolute), `bytes` and `sha256`, None if the file was not hashed."""


def record_files(ranks: Ranks, paths: Sequence[Path], wanted: bool | None) -> list[FileRecord]:
    """Return the record of each file, on every rank; each rank hashes some of them. Collective.

    `wanted`: whether to hash; None: only up to 64 GiB in total. Raises DataError on all ranks if a file is missing.
    """
    absolute = [path.absolute() for path in paths]
    sizes = ranks.on_root(lambda: [_size_of(path) for path in absolute])
    takes_hashes = sum(sizes) <= MOST_BYTES_UNASKED if wanted is None else wanted
    own = {}
    if takes_hashes:
        mine = range(ranks.rank, len(absolute), ranks.world_size)
        own = ranks.on_all_ranks(lambda: {number: hash_file(absolute[number]) for number in mine})
    hashes = {number: digest for found in ranks.gather_object(own) for number, digest in found.items()}
    return [
        {"path": str(path), "bytes": size, "sha256": hashes.get(number)}
        for number, (path, size) in enumerate(zip(absolute, sizes, strict=True))
    ]


def check_files(ranks: Ranks, recorded: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError on all ranks for the first file that is missing or differs from its record. Collective."""
    paths = [Path(file["path"]) for file in recorded]
    found = record_files(ranks, paths, any(file["sha256"] for file in recorded))
    ranks.on_all_ranks(lambda: _compare(recorded, found))


def _compare(recorded: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    for then, now in zip(recorded, found, strict=True):
        if then["sha256"] is None:
            if then["bytes"] != now["bytes"]:
                raise DataError(f"{then['path']}: had {then['bytes']} bytes, has {now['bytes']} now; restore it")
        elif then["sha256"] != now["sha256"]:
            raise DataError(
                f"{then['path']}: is not the file that the run read (SHA-256 {then['sha256'][:12]} then, "
                f"{now['sha256'][:12]} now); restore that file"
            )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files. Raises DataError."""
    digest = hashlib.sha256()
    try:
        for part in _parts(path):
            if part != path:
                digest.update(f"{part.relative_to(path).as_posix()}\0".encode())
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    """Return the file itself, or the files of a Zarr store ordered by name. Raises DataError."""
    if path.is_dir():
        return sorted(part for part in path.rglob("*") if part.is_file())
    if path.exists() and not path.is_file():  # a record may name a pipe or a device, which never ends
        raise DataError(f"{path}: is neither a file nor a folder; restore the data file")
    return [path]


def _size_of(path: Path) -> int:
    try:
        return sum(part.stat().st_size for part in _parts(path))
    except OSError as error:
        if is_in_temporary_folder(path):
            raise DataError(
                f"{path}: {NOT_STORED}; write them to a file, train the run's config.yaml with --data FILE and another "
                "--output, and compare the hashes"
            ) from error
        raise DataError(f"{path}: cannot be found ({error.strerror}); restore it") from error
