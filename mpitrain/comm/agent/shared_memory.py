"""Files of MPI libraries in shared memory: they are removed in MPI_Finalize, which ranks that are ended do not reach.

Each such launch would take some megabytes until the node is booted again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108  # where Linux has it, not a place for our own files
# MPICH: the launch, or the process where it is alone, and a number for each window. Open MPI: the job and the rank.
_FILES = re.compile(rf"{_FOLDER}/(mpich_shm_[0-9a-f]+_|sm_segment\.\S+\.)\d+$", re.MULTILINE)


def shared_memory_of(pid: int) -> set[str]:
    """Return the names, without their last number, of the files that this process shares with its node's ranks."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or is another user's
        return set()
    return set(_FILES.findall(maps))


def remove_shared_memory(names: Iterable[str]) -> None:
    """Remove the files of these names, which ranks that use them keep: for ranks that have all arrived, or ended."""
    for name in names:
        for path in _FOLDER.glob(f"{name}*"):
            with contextlib.suppress(OSError):
                path.unlink()
