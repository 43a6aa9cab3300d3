"""`mpirun` inside of a job: which one, and what it must hand to the ranks of other hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

# Variables that ranks need on every host, and how the names of those begin that a script sets.
_NAMES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSAFEPATH", "MPI4PY_LIBMPI")
PREFIXES = ("HDF5_", "OMP_", "NCCL_", "TORCH_NCCL_", "GLOO_", "OMPI_MCA_", "FI_", "UCX_")


def choose_mpirun(python: str, environ: Mapping[str, str]) -> str:
    """Return MPIRUN, else the one next to Python, else the site's own.

    An MPI that pip installed lies next to Python, and is the one that Python loads.
    """
    if environ.get("MPIRUN"):
        return environ["MPIRUN"]
    found = shutil.which(python, path=environ.get("PATH"))
    beside = Path(found).with_name("mpirun") if found else None
    return str(beside) if beside and os.access(beside, os.X_OK) else "mpirun"


def forwarded(environ: Mapping[str, str]) -> list[str]:
    """Return the words that give the ranks of other hosts this process's environment.

    Not every mpirun hands its environment to other hosts; the command `env` does it under all of them.
    """
    names = [name for name in environ if name in _NAMES or name.startswith(PREFIXES)]
    return ["env", *(f"{name}={environ[name]}" for name in sorted(names) if environ[name])]
