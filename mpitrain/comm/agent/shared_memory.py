"""Shared-memory files of MPI libraries, which only MPI_Finalize removes: ranks that are killed leave them behind.

Each such launch would occupy some megabytes of memory until the node is rebooted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108  # shared memory on Linux; this package writes no file there itself
# MPICH: named by the launch (one rank: by the process) and a number per window. Open MPI: by the job and the rank.
_FILES = re.compile(rf"{_FOLDER}/(mpich_shm_[0-9a-f]+_|sm_segment\.\S+\.)\d+$", re.MULTILINE)


def shared_memory_of(pid: int) -> set[str]:
    """Return the shared-memory files that MPI has mapped in this process, without the number at the end."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or is another user's
        return set()
    return set(_FILES.findall(maps))


def remove_shared_memory(names: Iterable[str]) -> None:
    """Remove the files of these names. Ranks that have mapped them keep the memory, but no rank can map them any more.

    Call it when all ranks have mapped the files, or have ended.
    """
    for name in names:
        for path in _FOLDER.glob(f"{name}*"):
            with contextlib.suppress(OSError):
                path.unlink()
