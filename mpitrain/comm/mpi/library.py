"""Version and path of the MPI library that Python loads, found without MPI_Init: safe on login nodes that forbid it.

`python -m mpitrain.comm.mpi.library` prints them as JSON, for callers that must survive a crash of the library.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_MAPPED_LIBRARY = re.compile(
    r"\S*/lib(?:mpi|mpich|mpi_abi|mpi_cray|mpi_gnu[^/]*|mpi_intel[^/]*)\.so[^/\s]*$", re.MULTILINE
)


@dataclass(frozen=True)
class MpiLibrary:
    """Version text (MPI_Get_library_version) and file of the loaded library, or the reason why none was loaded."""

    version: str = ""
    path: str = ""
    problem: str = ""


def read_mpi_library() -> MpiLibrary:
    """Load the MPI library that mpi4py selects and query its version, which MPI allows before MPI_Init."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True  # read on import: without it, MPI_Finalize is not called if MPI is initialised later
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py is not installed, or finds no MPI library
        return MpiLibrary(problem=" ".join(str(error).split()))
    return MpiLibrary(MPI.Get_library_version().strip("\0\n "), mapped_library_path())


def mapped_library_path() -> str:
    """Return the path of the MPI library mapped in this process; empty if there is none or no /proc/self/maps."""
    try:
        found = _MAPPED_LIBRARY.search(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[0] if found else ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(read_mpi_library())) + "\n")
