"""Compiled kernels in the cache: found whole or not at all.

NAME-IDENTITY.json            the library's name and SHA-256; written last, and durably
NAME-IDENTITY-CONTENT.so      the library, named by its own bytes: another build never changes it

A process that loads half a library dies in it (SIGBUS, SIGSEGV) or never returns: every byte is compared first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mpitrain.cache import cache_folder
from mpitrain.cluster.cpu.compiler_flags import build_identity, instruction_flags
from mpitrain.cluster.cpu.identity import detect_cpu
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


def build_or_none(name: str, compiler: str, flags: Sequence[str], source: str, any_cpu: bool = False) -> Path | None:
    """Return the library of a C++ source; compiled now if the cache does not hold it whole.

    None where the compiler fails or the cache cannot be written. `name` begins the names of its files. Uses what this
    CPU has, or with `any_cpu` what all of its architecture have, which compiles in a quarter of the time.
    """
    cpu = detect_cpu()
    flags = [*flags, *([] if any_cpu else instruction_flags(cpu))]
    # A cache in a home folder that several kinds of nodes share must not hand one kind's instructions to another.
    identity = "\n".join([source, compiler, *flags, cpu.architecture if any_cpu else build_identity(cpu)])
    record = cache_folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(ValueError):  # a damaged one is built anew
        found = find_kernel(record)
        if found is not None:
            return found
    partial = record.with_name(f"{record.stem}.{platform.node()}.{os.getpid()}.partial")
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        command = [compiler, *flags, "-x", "c++", "-", "-o", str(partial)]
        done = subprocess.run(
            command, input=source, capture_output=True, text=True, check=False, start_new_session=True
        )  # fmt: skip
        return store_kernel(partial, record) if done.returncode == 0 else None
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
