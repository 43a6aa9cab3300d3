"""`mpirun` inside a job: the choice of the program, and the environment that the ranks of other hosts need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

# Variables that ranks need on every host, and the prefixes of the variables that a job script sets.
_NAMES = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSAFEPATH", "MPI4PY_LIBMPI", "CXX", "MPITRAIN_CACHE",
    "MPITRAIN_START_TIMEOUT_S",
)  # fmt: skip
PREFIXES = ("HDF5_", "OMP_", "NCCL_", "TORCH_NCCL_", "GLOO_", "OMPI_MCA_", "FI_", "UCX_")


def choose_mpirun(python: str, environ: Mapping[str, str]) -> str:
    """Return $MPIRUN, otherwise the mpirun next to Python, otherwise the one on the PATH.

    An MPI library installed by pip lies next to Python, and is the one that Python loads.
    """
    if environ.get("MPIRUN"):
        return environ["MPIRUN"]
    found = shutil.which(python, path=environ.get("PATH"))
    beside = Path(found).with_name("mpirun") if found else None
    return str(beside) if beside and os.access(beside, os.X_OK) else "mpirun"


def forwarded(environ: Mapping[str, str]) -> list[str]:
    """Return a command `env NAME=VALUE ...` that passes this process's environment to the ranks of other hosts.

    Not every mpirun passes its environment to other hosts; the command `env` works under all of them.
    """
    names = [name for name in environ if name in _NAMES or name.startswith(PREFIXES)]
    return ["env", *(f"{name}={environ[name]}" for name in sorted(names) if environ[name])]
