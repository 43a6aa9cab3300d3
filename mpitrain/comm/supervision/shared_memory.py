"""What MPICH leaves in shared memory when ranks are ended: it removes its files in MPI_Finalize, not before.

Each such launch would take some megabytes until the node is booted again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path("/dev/shm")  # noqa: S108  # where Linux has it, not a place for our own files
# The launch, or the process where it is alone, and a number: windows that ranks share get files of their own.
_FILE_OF_MPICH = re.compile(rf"{_FOLDER}/(mpich_shm_[0-9a-f]+)_\d+$", re.MULTILINE)


def shared_memory_of(pid: int) -> set[str]:
    """Return the names, without their last number, of the files that MPICH shares with this process's node."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or is another user's
        return set()
    return set(_FILE_OF_MPICH.findall(maps))


def remove_shared_memory(names: Iterable[str]) -> None:
    """Remove the files of these names; for ranks that have all ended."""
    for name in names:
        for path in _FOLDER.glob(f"{name}_*"):
            with contextlib.suppress(OSError):
                path.unlink()
