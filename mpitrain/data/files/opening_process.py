"""The process that opens files for the first time (see `first_opening`), and may die of one.

A folder and a path from there come as a line of JSON on standard input; a line on standard output answers: what is
wrong, "" for nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

from mpitrain.data.files.open import open_field_file
from mpitrain.errors import MpitrainError

_IDLE_S = 10
_MOST_CPU_S = 30  # for one file: a library that goes in circles burns time, one that waits for a disk does not
_MOST_MEMORY_BYTES = 16 * 2**30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h


def serve(parent: int) -> None:
    """Answer until standard input ends, nobody has asked for some seconds, or the process `parent` has ended."""
    _limit(parent)
    _load_libraries()
    while True:
        signal.alarm(_IDLE_S)
        line = sys.stdin.buffer.readline()
        signal.alarm(0)
        if not line.endswith(b"\n"):
            os._exit(0)
        _limit_cpu_time()
        folder, path = json.loads(line)
        os.chdir(folder)  # the parent's of now: messages name the file as it does
        answer = try_to_open(Path(path))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def try_to_open(path: Path) -> str:
    """Open the file as a run would, and return what is wrong with it, "" for nothing."""
    try:
        open_field_file(path).close()
    except MpitrainError as error:
        return str(error)
    return ""


def _load_libraries() -> None:
    with suppress(ImportError):
        import h5py  # noqa: F401
        import netCDF4  # noqa: F401


def _limit(parent: int) -> None:
    # What asks a job to stop goes to all its processes; the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    _lower(resource.RLIMIT_AS, _MOST_MEMORY_BYTES)
    _lower(resource.RLIMIT_CORE, 0)


def _limit_cpu_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + _MOST_CPU_S)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    with suppress(ValueError, OSError):  # where the user's own limit is lower
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
