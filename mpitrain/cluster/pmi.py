"""The process-management interface (PMI) that a launcher offers to MPI, and whether the loaded library supports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from mpitrain.cluster.launchers import is_set
from mpitrain.errors import LaunchError

PmiKind = Literal["pmix", "pmi2", "pals"]
LibraryFamily = Literal["openmpi", "mpich", "intel", "unknown"]

# "pmi2" stands for PMI-1 and PMI-2, which have the same variables and are used by the same libraries.
PMI_VARIABLES: dict[PmiKind, tuple[str, ...]] = {
    "pmix": ("PMIX_RANK", "PMIX_NAMESPACE"),
    "pmi2": ("PMI_FD", "PMI_PORT", "PMI_RANK"),
    "pals": ("PALS_RANKID", "PALS_APID"),
}
_MPIRUN_VARIABLES = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID", "FLUX_TASK_RANK")


def offered_pmi(environ: Mapping[str, str]) -> tuple[PmiKind, ...]:
    """Return the kinds of PMI that were offered to this process, by the variables of the process manager."""
    launched_by_mpirun = any(is_set(environ, name) for name in _MPIRUN_VARIABLES)
    if environ.get("SLURM_MPI_TYPE") == "none" and not launched_by_mpirun:
        return ()  # any PMI variables are inherited from an outer shell
    return tuple(kind for kind, names in PMI_VARIABLES.items() if any(is_set(environ, name) for name in names))


def library_family(mpi_library: str) -> LibraryFamily:
    """Return the family of an MPI library, which determines its PMI, from MPI_Get_library_version."""
    text = mpi_library.lower()
    if "open mpi" in text:
        return "openmpi"
    if "intel" in text:
        return "intel"
    return "mpich" if "mpich" in text or "mvapich" in text else "unknown"


def library_name(mpi_library: str) -> str:
    """Return a short name with version for messages.

    Parameters
    ----------
    mpi_library : str
        Text of MPI_Get_library_version; only its first line is read.

    Returns
    -------
    str
        For example `MPICH 5.0.2` or `Open MPI 5.0.11`; `unknown MPI` if the text is empty.
    """
    lines = mpi_library.strip().splitlines()
    if not lines:
        return "unknown MPI"
    first_part = lines[0].split(",")[0].split("(ANL")[0]
    return re.sub(
        r"\s+",
        " ",
        re.sub(r"version\s*:?|\s:|\bv(?=[0-9])", " ", first_part.removeprefix("MPI VERSION"), flags=re.IGNORECASE),
    ).strip(" :")


def check_before_mpi_init(environ: Mapping[str, str], mpi_library: str) -> None:
    """Raise LaunchError if MPI_Init is known to abort the process, before mpitrain can print a message.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables of the process.
    mpi_library : str
        Full text of MPI_Get_library_version, which may be called before MPI_Init.

    Raises
    ------
    LaunchError
        PMIX_RANK or PMIX_NAMESPACE is set and the library is MPICH from version 5 on without PMIx support, which aborts
        then even under its own mpirun. On each rank by itself: not collective.
    """
    names = [name for name in PMI_VARIABLES["pmix"] if is_set(environ, name)]
    version = re.match(r"MPICH Version:\s*(\d+)", mpi_library)
    configure = re.search(r"MPICH configure:(.*)", mpi_library)
    if not names or version is None or int(version[1]) < 5 or configure is None or "pmix" in configure[1]:
        return
    library = library_name(mpi_library)
    raise LaunchError(
        f"{names[0]}={environ[names[0]]}: PMIx was offered to {library}, which aborts on it; {_fix_abort(environ)}; "
        f"or, if an outer shell set the variables, put `env {' '.join(f'-u {name}' for name in names)}` before the "
        "launch command"
    )


def _fix_abort(environ: Mapping[str, str]) -> str:
    if is_set(environ, "OMPI_COMM_WORLD_RANK"):
        num_ranks = environ.get("OMPI_COMM_WORLD_SIZE", "N")
        return (
            "Open MPI's mpirun started this process: use MPICH's, for an MPICH from pip "
            f'`"$(dirname "$(command -v python)")/mpirun" -n {num_ranks} python -m mpitrain`'
        )
    return f"start with `srun --mpi=pmi2 -n {environ.get('SLURM_STEP_NUM_TASKS', 'N')} python -m mpitrain`"
