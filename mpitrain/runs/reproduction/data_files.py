"""The hashes of the files that a run reads, shared out among the ranks, and whether they still are those."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.durable_files import HANDED_OVER, is_in_passing_folder
from mpitrain.errors import DataError

_BLOCK_BYTES = 1 << 20
# Beyond this nobody wants to wait for hashes that were not asked for.
MOST_BYTES_UNASKED = 64 * 2**30

FileRecord = dict[str, Any]
"""`path` (absolute), `bytes` and `sha256`, None where it was not taken."""


def record_files(ranks: Ranks, paths: Sequence[Path], wanted: bool | None) -> list[FileRecord]:
    """Return the record of each file, on every rank; each rank hashes some of them. Collective.

    `wanted` None: unless they are larger than 64 GiB together. Raises DataError, on all ranks, for a file that is gone.
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
    """Raise DataError, on all ranks, for the first file that is gone or is not the recorded one. Collective."""
    paths = [Path(file["path"]) for file in recorded]
    found = record_files(ranks, paths, any(file["sha256"] for file in recorded))
    ranks.on_all_ranks(lambda: _compare(recorded, found))


def _compare(recorded: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    for then, now in zip(recorded, found, strict=True):
        if then["sha256"] is None:
            if then["bytes"] != now["bytes"]:
                raise DataError(f"{then['path']}: had {then['bytes']} bytes, has {now['bytes']} now; put it back")
        elif then["sha256"] != now["sha256"]:
            raise DataError(
                f"{then['path']}: is not the file that the run read (SHA-256 {then['sha256'][:12]} then, "
                f"{now['sha256'][:12]} now); put that file back"
            )


def hash_file(path: Path) -> str:
    """Return a file's SHA-256, of a folder that of its files' names and contents. Raises DataError."""
    digest = hashlib.sha256()
    try:
        for part in _parts(path):
            if part != path:
                digest.update(f"{part.relative_to(path).as_posix()}\0".encode())
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
    except (OSError, ValueError) as error:  # a name that no file can have
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from error
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    """Return the file itself, or the files of a Zarr store in the order of their names. Raises DataError."""
    if path.is_dir():
        return sorted(part for part in path.rglob("*") if part.is_file())
    if path.exists() and not path.is_file():  # a record may name a pipe or a device, which have no end
        raise DataError(f"{path}: is neither a file nor a folder; put the data file back")
    return [path]


def _size_of(path: Path) -> int:
    try:
        return sum(part.stat().st_size for part in _parts(path))
    except OSError as error:
        if is_in_passing_folder(path):
            raise DataError(f"{path}: {HANDED_OVER}") from error
        raise DataError(f"{path}: cannot be found ({error.strerror}); put it back") from error
