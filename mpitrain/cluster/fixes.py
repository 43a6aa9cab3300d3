"""Texts of the commands that correct a contradictory launch; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain.cluster.launchers import FLUX, OVER_TCP, PALS, PMI, PMIX, SLURM_STEP, TORCHRUN
from mpitrain.cluster.pmi import LibraryFamily, PmiKind, library_family, library_name
from mpitrain.cluster.rank_info import RankClaim

_SLURM_MPI_TYPE: dict[LibraryFamily, PmiKind] = {"openmpi": "pmix", "mpich": "pmi2", "intel": "pmi2"}


def srun_command(mpi_library: str, num_ranks: int | None) -> str:
    """Return the quoted srun command: `--mpi=pmix` for Open MPI, `--mpi=pmi2` for MPICH and Intel MPI."""
    family = library_family(mpi_library)
    rest = _arguments(num_ranks)
    if family == "unknown":
        return f"`srun --mpi=pmi2 {rest}` (MPICH, Intel MPI) or `srun --mpi=pmix {rest}` (Open MPI)"
    # Intel MPI connects to Slurm only through Slurm's PMI library.
    prefix = "I_MPI_PMI_LIBRARY=/path/to/libpmi2.so " if family == "intel" else ""
    return f"`{prefix}srun --mpi={_SLURM_MPI_TYPE[family]} {rest}`"


def fix_unused_pmi(starters: Sequence[RankClaim], offered: Sequence[PmiKind], mpi_library: str) -> str:
    """Return advice on how to start so that the loaded library finds the ranks of the claims `starters`."""
    num_ranks = max((claim.world_size for claim in starters if claim.world_size is not None), default=None)
    sources = [claim.source for claim in starters]
    if FLUX in sources:
        return _fix_flux(mpi_library, num_ranks)
    if SLURM_STEP in sources:
        return _fix_slurm(offered, mpi_library, num_ranks)
    named = [source for source in sources if source not in (PMI, PMIX, *OVER_TCP)] or ["another MPI's process manager"]
    return f"{named[0]} started this process, but Python loaded {library_name(mpi_library)}; " + _use_own_mpirun(
        mpi_library, num_ranks, mpirun="mpiexec" if PALS in sources else "mpirun"
    )


def fix_one_launcher(contradicting: Sequence[RankClaim]) -> str:
    """Return advice on how to remove the launchers' claims that contradict the trusted one."""
    names = list(dict.fromkeys(name for claim in contradicting for name in claim.variables))
    advice = (
        "start it with one launcher only, not one inside the other (`srun python ...` or `mpirun python ...`, "
        f"never `srun mpirun ...`); where an outer shell left variables behind, `unset {' '.join(names)}` first"
    )
    if any(claim.source == TORCHRUN for claim in contradicting):
        advice += "; torchrun inside a Slurm step: `srun --mpi=none --ntasks-per-node=1 torchrun ...`"
    return advice


def fix_missing_library(starter: RankClaim) -> str:
    """Return advice if mpirun started several ranks but no MPI library could be loaded."""
    return (
        f"{starter.source} started {starter.world_size} ranks, but Python could load no MPI library; point mpi4py at "
        f"that MPI: `MPI4PY_LIBMPI=/path/to/libmpi.so mpirun -n {starter.world_size} python -m mpitrain`, or train "
        f"without MPI: `torchrun --nproc-per-node {starter.world_size} -m mpitrain`"
    )


def _fix_slurm(offered: Sequence[PmiKind], mpi_library: str, num_ranks: int | None) -> str:
    without = f"; without MPI: `srun --mpi=none {_arguments(num_ranks)}`"
    if tuple(offered) == (_SLURM_MPI_TYPE.get(library_family(mpi_library)),):
        return (
            f"Slurm offered {offered[0]}, the right kind, but this {library_name(mpi_library)} was built without it "
            "(`srun --mpi=list` shows the other kinds); inside the job "
            + _use_own_mpirun(mpi_library, num_ranks)
            + without
        )
    return (
        f"Slurm offered {' and '.join(offered)}, which {library_name(mpi_library)} does not use; "
        f"start with {srun_command(mpi_library, num_ranks)}{without}"
    )


def _fix_flux(mpi_library: str, num_ranks: int | None) -> str:
    option = "-o pmi=pmix " if library_family(mpi_library) == "openmpi" else ""
    return (
        f"Flux's PMI was not used by {library_name(mpi_library)}; "
        f"start with `flux run {option}{_arguments(num_ranks)}`, or " + _use_own_mpirun(mpi_library, num_ranks)
    )


def _use_own_mpirun(mpi_library: str, num_ranks: int | None, mpirun: str = "mpirun") -> str:
    run = _arguments(num_ranks)
    return (
        f"use the mpirun next to that library (`python -m mpi4py --mpi-lib-version` names it; for an MPI from pip: "
        f'`"$(dirname "$(command -v python)")/mpirun" {run}`), or load the launcher\'s own MPI: '
        f"`MPI4PY_LIBMPI=/path/to/libmpi.so {mpirun} {run}`"
    )


def _arguments(num_ranks: int | None) -> str:
    return f"-n {'N' if num_ranks is None else num_ranks} python -m mpitrain"
