"""Compiled kernels in the cache: found whole or not at all.

dense_network-IDENTITY.json            the library's name and SHA-256; written last, and durably
dense_network-IDENTITY-CONTENT.so      the library, named by its own bytes: another build never changes it

A process that loads half a library dies in it (SIGBUS, SIGSEGV) or never returns: every byte is compared first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mpitrain.durable_files import sync_file, sync_folder, write_durably

_DIGITS_IN_NAME = 16


def find_kernel(record: Path) -> Path | None:
    """Return the library that `record` tells of, every byte compared; None where none is stored.

    Raises ValueError, saying what is wrong, where the record or the library is not as it was written.
    """
    try:
        stored = json.loads(record.read_bytes())
        library = record.with_name(stored["library"])
        expected = stored["sha256"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record} is damaged") from error
    try:
        found = sha256_of(library)
    except OSError as error:
        raise ValueError(f"{library} cannot be read ({error.strerror})") from error
    if found != expected or library != _library_of(record, found):
        raise ValueError(f"{library} is damaged")
    return library


def store_kernel(built: Path, record: Path) -> Path:
    """Move the library `built`, in the record's folder, to its place; return that. Raises OSError."""
    digest = sha256_of(built)
    library = _library_of(record, digest)
    sync_file(built)
    # Ranks of several nodes may build at once: each puts a whole library in place, under a name of its bytes.
    built.replace(library)
    sync_folder(library.parent)
    write_durably(record, json.dumps({"library": library.name, "sha256": digest}).encode())
    return library


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _library_of(record: Path, digest: str) -> Path:
    return record.with_name(f"{record.stem}-{digest[:_DIGITS_IN_NAME]}.so")
