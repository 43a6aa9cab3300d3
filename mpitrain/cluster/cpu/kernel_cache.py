"""Cache of compiled kernels: a library is loaded only if it is complete.

NAME-IDENTITY.json            the library's name and SHA-256; written last, and durably
NAME-IDENTITY-CONTENT.so      the library, named by a hash of its content: another build never overwrites it

A process that loads an incomplete library crashes (SIGBUS, SIGSEGV) or hangs, so the library's SHA-256 is checked
first. A library is code: it is not loaded if another user could have written it, nor searched for in a folder that
other users can write to. If the cache is such a folder or its disk is full, a private folder below $TMPDIR is used
instead, so that the engine, and therefore the bits of the result, stay the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from mpitrain.cache import cache_folder, private_folder, reason_not_trusted, reason_not_used
from mpitrain.cluster.cpu.compiler_flags import build_identity, instruction_flags
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.durable_files import sync_file, sync_folder, write_durably

_DIGITS_IN_NAME = 16
_ROOM_BYTES = 1 << 20  # a kernel has about 100 KB


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library of the cache from the same bytes that are checked. Raises OSError, or ValueError as `find_kernel`.

    The file is opened once: a file that replaces it afterwards is not loaded.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        _refuse_others(path, os.fstat(file.fileno()))
        digest = hashlib.sha256(file.read()).hexdigest()
        if not path.stem.endswith(digest[:_DIGITS_IN_NAME]):
            raise ValueError(f"{path} is damaged")
        opened = _name_of_descriptor(file.fileno(), digest)
        library = ctypes.CDLL(opened if os.path.exists(opened) else str(path))
    library._name = str(path)
    return library


def _name_of_descriptor(descriptor: int, digest: str) -> str:
    """Return a path of an open file that is spelled differently for every content.

    The loader returns the same library again for a path that it has loaded before, and descriptor numbers are reused:
    the bits of `digest` are therefore encoded as redundant path components.
    """
    bits = f"{int(digest[:_DIGITS_IN_NAME], 16):b}"
    return f"/proc/self/fd/{''.join('./' if bit == '0' else './/' for bit in bits)}{descriptor}"


def find_kernel(record: Path) -> Path | None:
    """Return the library of `record` after checking its SHA-256; None if none is stored.

    Raises ValueError if the record or the library is damaged, or if another user could have written it.
    """
    try:
        stored = json.loads(record.read_bytes())
        library = record.with_name(stored["library"])
        expected = stored["sha256"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{record} is damaged") from error
    try:
        _refuse_others(library, library.lstat())
        found = sha256_of(library)
    except OSError as error:
        raise ValueError(f"{library} cannot be read ({error.strerror})") from error
    if found != expected or library != _library_of(record, found):
        raise ValueError(f"{library} is damaged")
    return library


def store_kernel(built: Path, record: Path) -> Path:
    """Move the library `built`, below the record's folder, to its final path, and return it. Raises OSError."""
    digest = sha256_of(built)
    library = _library_of(record, digest)
    built.chmod(0o755)  # for any umask: not writable by a group
    sync_file(built)
    # Ranks of several nodes may build at once: each moves a complete library to a name that depends on its content.
    built.replace(library)
    sync_folder(library.parent)
    write_durably(record, json.dumps({"library": library.name, "sha256": digest}).encode())
    return library


def find_or_build(name: str, build: Callable[[Path], Path], say: Callable[[str], None]) -> Path:
    """Return the kernel of the record `name`; if it is not stored, `build` is called with the path of the record.

    `say` is called with a message if the cache is not used or a kernel is damaged. Raises OSError if the kernel cannot
    be stored, and any exception of `build`.
    """
    chosen = cache_folder()
    reason = reason_not_used(chosen)
    if reason is None:
        try:
            return _found_or_built(chosen / name, build, say)
        except OSError as error:
            reason = f"cannot be written ({error.strerror})"
    private = private_folder()
    say(f"the cache of compiled steps: {chosen} {reason}; {private} is used instead")
    return _found_or_built(private / name, build, say)


def _found_or_built(record: Path, build: Callable[[Path], Path], say: Callable[[str], None]) -> Path:
    try:
        found = find_kernel(record)
    except ValueError as error:
        say(f"the cache of compiled steps: {error}; it is built again")
        found = None
    return found or build(record)


def _refuse_others(path: Path, status: os.stat_result) -> None:
    reason = reason_not_trusted(status)
    if reason is not None or not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} {reason or 'is not a regular file'}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _library_of(record: Path, digest: str) -> Path:
    return record.with_name(f"{record.stem}-{digest[:_DIGITS_IN_NAME]}.so")


def build_or_none(
    name: str, compiler: str, flags: Sequence[str], source: str, any_cpu: bool = False
) -> ctypes.CDLL | None:  # fmt: skip
    """Return the library of a C++ source, from the cache or compiled now; None if it cannot be compiled or stored.

    Its file names begin with `name`. It uses the instruction sets of this CPU, or with `any_cpu` the baseline of the
    architecture, which compiles in a quarter of the time.
    """
    cpu = detect_cpu()
    flags = [*flags, *([] if any_cpu else instruction_flags(cpu))]
    # Nodes with different CPUs may share the cache of a home folder: a library must not be loaded on another CPU.
    identity = "\n".join([source, compiler, *flags, cpu.architecture if any_cpu else build_identity(cpu)])
    record = f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    command = [compiler, *flags, "-x", "c++", "-"]
    with contextlib.suppress(OSError, ValueError):
        return load_library(find_or_build(record, lambda path: compile_into(path, command, source), lambda _: None))
    return None


def compile_into(record: Path, command: Sequence[str], source: str | None = None) -> Path:
    """Run the compiler with `source` on its standard input, store the library, and return its path.

    Raises OSError, also if the disk is full, and CompilerError with the compiler's message if it fails.
    """
    record.parent.mkdir(parents=True, exist_ok=True)
    # In a private folder: a compiler follows symbolic links when it writes, and leaves files behind if interrupted.
    prefix = f"{record.stem}.{platform.node()}.{os.getpid()}-"
    with tempfile.TemporaryDirectory(".partial", prefix, record.parent, ignore_cleanup_errors=True) as folder:
        built = Path(folder, "library.so")
        # In its own session: Ctrl-C stops the run after its first step and must not interrupt the compiler.
        done = subprocess.run(
            [*command, "-o", str(built)], input=source, capture_output=True, text=True, check=False,
            start_new_session=True, env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
        if done.returncode != 0:
            raise _refusal_of(done.stderr, record.parent)
        return store_kernel(built, record)


class CompilerError(ValueError):
    """The compiler failed; the text is its message."""


def _refusal_of(message: str, folder: Path) -> Exception:
    if shutil.disk_usage(folder).free < _ROOM_BYTES or not os.access(folder, os.W_OK):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return CompilerError(message)
