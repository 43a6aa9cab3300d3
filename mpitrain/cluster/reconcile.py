"""Decide the rank and world size of this process: query MPI first, then check against every launcher's variables.

If a launcher's PMI does not fit the MPI library, each of the N processes is rank 0 of 1, and all would train and
overwrite each other's files. Therefore any contradiction is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from mpitrain.cluster.fixes import fix_missing_library, fix_one_launcher, fix_unused_pmi, srun_command
from mpitrain.cluster.launchers import (
    BY_HAND,
    HYDRA,
    OPEN_MPI,
    OVER_TCP,
    SHELL_STEP_IDS,
    SLURM_STEP,
    is_set,
    read_claims,
    without_inherited,
)
from mpitrain.cluster.pmi import library_name, offered_pmi
from mpitrain.cluster.rank_info import RankClaim
from mpitrain.errors import LaunchError
from mpitrain.text_table import aligned

Transport = Literal["mpi", "torch"]


@dataclass(frozen=True)
class LaunchDecision:
    """The transport to open, the trusted claim, and notices that one rank prints."""

    transport: Transport
    claim: RankClaim
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Scene:
    """All inputs of the decision: MPI's claim, all launchers' claims for the table, and those that apply here."""

    mpi: RankClaim | None
    all_claims: tuple[RankClaim, ...]
    claims: tuple[RankClaim, ...]
    environ: Mapping[str, str]
    mpi_library: str

    @property
    def larger(self) -> tuple[RankClaim, ...]:
        """Claims of more than one rank. A claim of one rank is no contradiction (mpirun inside a step of one task)."""
        return tuple(claim for claim in self.claims if (claim.world_size or 1) > 1)


def reconcile(mpi: RankClaim | None, environ: Mapping[str, str], mpi_library: str = "") -> LaunchDecision:
    """Return the transport, the rank and the world size. Not collective.

    `mpi` has rank and size of MPI_COMM_WORLD, None if no MPI library could be loaded; `mpi_library` is the first line
    of MPI_Get_library_version. All ranks of a launch decide alike, since their variables agree. Raises LaunchError with
    a table of all claims and the command that corrects the launch.
    """
    claims = read_claims(environ)
    scene = _Scene(mpi, claims, without_inherited(claims, environ), environ, mpi_library)
    if mpi is not None and (mpi.world_size or 1) > 1:
        _check_agreement(scene, (mpi, *scene.larger))
        return LaunchDecision("mpi", _merge(mpi, scene.larger))
    if scene.larger:
        return _decide_without_mpi(scene)
    return _decide_for_one_process(scene)


def _decide_for_one_process(scene: _Scene) -> LaunchDecision:
    later_ranks = [claim for claim in scene.claims if claim.world_size is None and (claim.rank or 0) > 0]
    if later_ranks:
        _raise_unused_pmi(scene, later_ranks)
    _check_launcher_not_forgotten(scene)
    claim = scene.mpi or RankClaim("one process", 0, 1)
    return LaunchDecision(
        "mpi" if scene.mpi else "torch",
        replace(claim, rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0, num_nodes=1),
    )


def _decide_without_mpi(scene: _Scene) -> LaunchDecision:
    larger = scene.larger
    _check_agreement(scene, larger)
    starters = [claim for claim in larger if claim.source not in OVER_TCP]
    if scene.mpi is None:
        _check_torch_can_serve(scene, starters)
    elif starters and offered_pmi(scene.environ):
        _raise_unused_pmi(scene, starters)
    claim = _merge(larger[-1] if larger[-1].source in OVER_TCP else larger[0], scene.claims)
    if claim.rank is None:
        _raise(scene, f"{claim.world_size} ranks were started, but the rank of this process is unknown", "set RANK")
    return LaunchDecision("torch", claim, (_torch_notice(scene, claim),))


def _check_agreement(scene: _Scene, claims: Sequence[RankClaim]) -> None:
    """Compare all claims with the first one, which is MPI's if MPI has several ranks."""
    trusted, others = claims[0], claims[1:]
    other_sizes = [claim for claim in others if claim.world_size != trusted.world_size]
    if other_sizes:
        found = " and ".join(f"{claim.world_size} ({claim.source})" for claim in (trusted, *other_sizes))
        problem = f"the launch contradicts itself: the number of ranks is {found}"
        _raise(scene, problem, fix_one_launcher(other_sizes))
    with_rank = [claim for claim in claims if claim.rank is not None]
    other_ranks = [claim for claim in with_rank if claim.rank != with_rank[0].rank]
    if other_ranks:
        found = " and ".join(f"{claim.rank} ({claim.source})" for claim in (with_rank[0], *other_ranks))
        _raise(scene, f"the launch contradicts itself: this process is rank {found}", fix_one_launcher(other_ranks))


def _check_torch_can_serve(scene: _Scene, starters: Sequence[RankClaim]) -> None:
    """Refuse mpirun without an MPI library: its ranks have no rendezvous address unless MASTER_ADDR is set."""
    mpiruns = [claim for claim in starters if claim.source in (OPEN_MPI, HYDRA)]
    if mpiruns and not (is_set(scene.environ, "MASTER_ADDR") and is_set(scene.environ, "MASTER_PORT")):
        _raise(scene, "mpirun was used, but there is no MPI", fix_missing_library(mpiruns[0]))


def _check_launcher_not_forgotten(scene: _Scene) -> None:
    """Refuse a job script that runs Python without a launcher: it would use one process of the many in the job."""
    environ = scene.environ
    in_step = is_set(environ, "SLURM_STEP_NUM_TASKS") and environ.get("SLURM_STEP_ID") not in SHELL_STEP_IDS
    if in_step or any(claim.rank is not None for claim in scene.claims) or offered_pmi(environ):
        return
    _check_slurm_tasks(scene)
    _check_pbs_slots(environ)


def _check_slurm_tasks(scene: _Scene) -> None:
    environ = scene.environ
    names = _set_names(environ, ("SLURM_NTASKS",), ("SLURM_NPROCS",), ("SLURM_NNODES", "SLURM_NTASKS_PER_NODE"))
    if not names or not is_set(environ, "SLURM_JOB_ID"):
        return
    num_tasks = _product(environ, names)
    if num_tasks > 1:
        raise LaunchError(
            f"{_shown(environ, names)} in Slurm job {environ['SLURM_JOB_ID']}, but this is the only process: nothing "
            f"started the others; put srun before python: {srun_command(scene.mpi_library, num_tasks)}, or for "
            f"one process on purpose: `{names[0] if len(names) == 1 else 'SLURM_NTASKS'}=1 python -m mpitrain`"
        )


def _check_pbs_slots(environ: Mapping[str, str]) -> None:
    """Compare with the host file of PBS and Torque, one line per slot; without it, with Torque's variables."""
    if not is_set(environ, "PBS_JOBID"):
        return
    num_slots, finding = _slots_of_file(environ.get("PBS_NODEFILE", "")), "PBS_NODEFILE has {} slots"
    if num_slots is None:
        # There is no file, or it is on another host only.
        names = _set_names(environ, ("PBS_NP",), ("PBS_NUM_NODES", "PBS_NUM_PPN"), ("PBS_NUM_NODES",))
        num_slots, finding = _product(environ, names), _shown(environ, names)
    if num_slots > 1:
        raise LaunchError(
            f"{finding.format(num_slots)} in job {environ['PBS_JOBID']}, but this is the only process: nothing "
            f"started the others; put mpirun before python: `mpirun -np {num_slots} python -m mpitrain`, or for one "
            "process on purpose: `env -u PBS_JOBID python -m mpitrain`"
        )


def _slots_of_file(path: str) -> int | None:
    try:
        return len(Path(path).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return None


def _set_names(environ: Mapping[str, str], *choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of `choices` with all variables set; empty if there is none."""
    return next((names for names in choices if all(is_set(environ, name) for name in names)), ())


def _product(environ: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the product of the variables' values, 1 for no variables. Raises LaunchError for a non-numeric value."""
    for name in names:
        if not (environ[name].isascii() and environ[name].isdigit()):
            raise LaunchError(f"{name}={environ[name]}: not a whole number; the scheduler sets it, so `unset {name}`")
    return math.prod(int(environ[name]) for name in names)


def _shown(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return " and ".join(f"{name}={environ[name]}" for name in names)


def _merge(trusted: RankClaim, others: Sequence[RankClaim]) -> RankClaim:
    """Fill missing fields of the trusted claim from claims of the same world size."""
    fields = ("rank", "local_rank", "local_world_size", "node_rank", "num_nodes")
    for other in others:
        if other.world_size != trusted.world_size:
            continue
        added = {name: getattr(other, name) for name in fields if getattr(trusted, name) is None}
        trusted = replace(trusted, **added)
    return trusted


def _torch_notice(scene: _Scene, claim: RankClaim) -> str:
    started = f"{claim.source} started {claim.world_size} ranks"
    over = "they train over torch.distributed"
    if claim.source == BY_HAND:
        started = f"{claim.world_size} ranks were started by hand (RANK and WORLD_SIZE are set)"
    if claim.source in OVER_TCP:
        return f"{started}: {over}; for MPI start with mpirun or srun instead"
    if scene.mpi is None:
        return f"{started} and no MPI library could be loaded: {over}; for MPI install one and mpi4py"
    if claim.source == SLURM_STEP:
        command = srun_command(scene.mpi_library, claim.world_size or 1)
        return f"{started} without a PMI for MPI: {over}; for MPI start with {command}"
    return f"{started} without a PMI for MPI: {over}"


def _raise_unused_pmi(scene: _Scene, starters: Sequence[RankClaim]) -> NoReturn:
    library = library_name(scene.mpi_library) if scene.mpi else "no MPI library"
    _raise(
        scene,
        f"several ranks were started, but each is alone in MPI_COMM_WORLD ({library})",
        fix_unused_pmi(starters, offered_pmi(scene.environ), scene.mpi_library),
    )


def _raise(scene: _Scene, problem: str, fix: str) -> NoReturn:
    first = scene.mpi or RankClaim("MPI", variables=("no library could be loaded",))
    raise LaunchError(problem, *render_claims_table((first, *scene.all_claims)), f"To fix it: {fix}")


def render_claims_table(claims: Sequence[RankClaim]) -> list[str]:
    """Return a table with one line per source: its rank numbers and the variables; `-` for a missing value."""
    rows = [("source", "rank", "world_size", "local_rank", "read from")]
    for claim in claims:
        rank, size, local = ("-" if n is None else str(n) for n in (claim.rank, claim.world_size, claim.local_rank))
        rows.append((claim.source, rank, size, local, ", ".join(claim.variables) or "-"))
    return aligned(rows)
