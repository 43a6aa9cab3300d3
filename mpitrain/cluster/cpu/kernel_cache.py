"""Compiled kernels in the cache: found whole or not at all.

NAME-IDENTITY.json            the library's name and SHA-256; written last, and durably
NAME-IDENTITY-CONTENT.so      the library, named by its own bytes: another build never changes it

A process that loads half a library dies in it (SIGBUS, SIGSEGV) or never returns: every byte is compared first. A
library is code: one that another user could have written is not loaded, nor looked for in a folder that others can
write to. Where the cache is such a folder, or has no room, a folder of this user alone below $TMPDIR takes its place,
so that the engine, and with it the bits of a result, are the same.
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

from mpitrain.cache import cache_folder, private_folder, why_not_trusted, why_not_used
from mpitrain.cluster.cpu.compiler_flags import build_identity, instruction_flags
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.durable_files import sync_file, sync_folder, write_durably

_DIGITS_IN_NAME = 16
_ROOM_BYTES = 1 << 20  # a kernel has some 100 KB


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library of the cache from the very bytes that were compared. Raises ValueError as `find_kernel`, OSError.

    The file is opened once: what others put in its place after that is not loaded.
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

    The loader returns a library that it has loaded before under the same spelling, and descriptors' numbers are used
    again: the bits of `digest` are spelled as path components that change nothing.
    """
    bits = f"{int(digest[:_DIGITS_IN_NAME], 16):b}"
    return f"/proc/self/fd/{''.join('./' if bit == '0' else './/' for bit in bits)}{descriptor}"


def find_kernel(record: Path) -> Path | None:
    """Return the library that `record` tells of, every byte compared; None where none is stored.

    Raises ValueError, saying what is wrong, where the record or the library is not as it was written, or another user
    could have written it.
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
    """Move the library `built`, below the record's folder, to its place; return that. Raises OSError."""
    digest = sha256_of(built)
    library = _library_of(record, digest)
    built.chmod(0o755)  # whatever the umask: not for a group to write
    sync_file(built)
    # Ranks of several nodes may build at once: each puts a whole library in place, under a name of its bytes.
    built.replace(library)
    sync_folder(library.parent)
    write_durably(record, json.dumps({"library": library.name, "sha256": digest}).encode())
    return library


def find_or_build(name: str, build: Callable[[Path], Path], say: Callable[[str], None]) -> Path:
    """Return the kernel of the record `name`; `build` makes it for a record's path where it is not stored.

    `say` is told why the cache is not used, and of a damaged kernel. Raises OSError where it can be stored nowhere, and
    what `build` raises.
    """
    chosen = cache_folder()
    why = why_not_used(chosen)
    if why is None:
        try:
            return _found_or_built(chosen / name, build, say)
        except OSError as error:
            why = f"cannot be written ({error.strerror})"
    private = private_folder()
    say(f"the cache of compiled steps: {chosen} {why}; {private} is used instead")
    return _found_or_built(private / name, build, say)


def _found_or_built(record: Path, build: Callable[[Path], Path], say: Callable[[str], None]) -> Path:
    try:
        found = find_kernel(record)
    except ValueError as error:
        say(f"the cache of compiled steps: {error}; it is built anew")
        found = None
    return found or build(record)


def _refuse_others(path: Path, status: os.stat_result) -> None:
    why = why_not_trusted(status)
    if why is not None or not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} {why or 'is no file'}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _library_of(record: Path, digest: str) -> Path:
    return record.with_name(f"{record.stem}-{digest[:_DIGITS_IN_NAME]}.so")


def build_or_none(
    name: str, compiler: str, flags: Sequence[str], source: str, any_cpu: bool = False
) -> ctypes.CDLL | None:  # fmt: skip
    """Return the library of a C++ source; compiled now if the cache does not hold it whole.

    None where the compiler fails or no folder takes it. `name` begins the names of its files. Uses what this CPU has,
    or with `any_cpu` what all of its architecture have, which compiles in a quarter of the time.
    """
    cpu = detect_cpu()
    flags = [*flags, *([] if any_cpu else instruction_flags(cpu))]
    # A cache in a home folder that several kinds of nodes share must not hand one kind's instructions to another.
    identity = "\n".join([source, compiler, *flags, cpu.architecture if any_cpu else build_identity(cpu)])
    record = f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    command = [compiler, *flags, "-x", "c++", "-"]
    with contextlib.suppress(OSError, ValueError):
        return load_library(find_or_build(record, lambda path: compile_into(path, command, source), lambda _: None))
    return None


def compile_into(record: Path, command: Sequence[str], source: str | None = None) -> Path:
    """Run the compiler, with `source` on its standard input, and store what it builds; return the library.

    Raises OSError, also where there is no room for what it writes, and CompilerError with its message where it fails.
    """
    record.parent.mkdir(parents=True, exist_ok=True)
    # A folder of this process alone: a compiler writes through a link, and leaves its files where it is interrupted.
    beside = f"{record.stem}.{platform.node()}.{os.getpid()}-"
    with tempfile.TemporaryDirectory(".partial", beside, record.parent, ignore_cleanup_errors=True) as folder:
        built = Path(folder, "library.so")
        # In a session of its own: a Ctrl-C is for the run, which stops after its first step, not for the compiler.
        done = subprocess.run(
            [*command, "-o", str(built)], input=source, capture_output=True, text=True, check=False,
            start_new_session=True, env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
        if done.returncode != 0:
            raise _refusal_of(done.stderr, record.parent)
        return store_kernel(built, record)


class CompilerError(ValueError):
    """The compiler has failed; the text is its message."""


def _refusal_of(message: str, folder: Path) -> Exception:
    if shutil.disk_usage(folder).free < _ROOM_BYTES or not os.access(folder, os.W_OK):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return CompilerError(message)
