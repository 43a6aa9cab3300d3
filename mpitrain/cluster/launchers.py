"""Table of launchers and their variables; reading the variables into claims; removing inherited claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mpitrain.cluster.host_list import expand_tasks_per_node
from mpitrain.cluster.rank_info import RankClaim
from mpitrain.errors import LaunchError

OPEN_MPI = "Open MPI mpirun"
HYDRA = "MPICH mpirun"
PMI = "PMI"
PMIX = "PMIx"
SLURM_STEP = "Slurm step"
PALS = "Cray PALS"
FLUX = "Flux"
TORCHRUN = "torchrun"
BY_HAND = "RANK and WORLD_SIZE set by hand"
# Both set the same variables, and the ranks connect over TCP.
OVER_TCP = (TORCHRUN, BY_HAND)
PBS_JOB = "PBS job"

# Ids of Slurm steps that run a shell, not the ranks of a launch: interactive, batch, external.
SHELL_STEP_IDS = ("4294967290", "4294967291", "4294967292")

_OF_A_RANK = re.compile(
    r"PMI_|PMIX_|OMPI_|PRTE_|OPAL_|MPI_LOCAL|MPIEXEC_|HYD|PALS_|MV2_COMM_|SLURM_|FLUX_|PBS_|TORCHELASTIC_"
    r"|(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+|MASTER_ADDR|MASTER_PORT)$"
)
_SETTING = re.compile(r"(OMPI|PRTE|PMIX)_MCA_(?!ess|orte_|prte_ess|pmix_server)|OMPI_ALLOW_RUN_AS_ROOT")


@dataclass(frozen=True)
class Launcher:
    """Variable names of one launcher; empty if it sets no such variable."""

    source: str
    rank: str = ""
    world_size: str = ""
    local_rank: str = ""
    local_world_size: str = ""
    node_rank: str = ""
    num_nodes: str = ""
    tasks_per_node: str = ""
    only_with: str = ""
    not_with: str = ""
    half_allowed: bool = False
    job_markers: tuple[str, ...] = ()
    start_command: str = "mpirun -n 4 python -m mpitrain"


LAUNCHERS = (
    Launcher(
        OPEN_MPI,
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        # OMPI_COMM_WORLD_NODE_RANK is a process's number among all jobs of its node, not the node's number.
    ),
    Launcher(
        HYDRA,  # also Intel MPI
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
        only_with="MPI_LOCALRANKID",
        half_allowed=True,
    ),
    Launcher(
        PMI,  # from srun --mpi=pmi2, Cray or Flux: if the size is not set, only MPI has it
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="PMI_LOCAL_RANK",
        local_world_size="PMI_LOCAL_SIZE",
        not_with="MPI_LOCALRANKID",
        half_allowed=True,
    ),
    Launcher(PMIX, rank="PMIX_RANK", half_allowed=True),
    Launcher(
        SLURM_STEP,
        rank="SLURM_PROCID",
        # never SLURM_NTASKS: it is the number requested by the job, and 1 in every rank of an mpirun inside sbatch
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        node_rank="SLURM_NODEID",
        num_nodes="SLURM_STEP_NUM_NODES",
        tasks_per_node="SLURM_STEP_TASKS_PER_NODE",
        only_with="SLURM_STEP_NUM_TASKS",
        start_command="srun -n 4 python -m mpitrain",
    ),
    Launcher(
        PALS,
        rank="PALS_RANKID",
        local_rank="PALS_LOCAL_RANKID",
        local_world_size="PALS_LOCAL_SIZE",
        node_rank="PALS_NODEID",
        half_allowed=True,
        start_command="mpiexec -n 4 python -m mpitrain",
    ),
    Launcher(
        FLUX,
        rank="FLUX_TASK_RANK",
        world_size="FLUX_JOB_SIZE",
        local_rank="FLUX_TASK_LOCAL_ID",
        num_nodes="FLUX_JOB_NNODES",
        start_command="flux run -n 4 python -m mpitrain",
    ),
    Launcher(
        TORCHRUN,
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world_size="LOCAL_WORLD_SIZE",
        node_rank="GROUP_RANK",
        num_nodes="GROUP_WORLD_SIZE",
        start_command="torchrun --nproc-per-node 4 -m mpitrain",
    ),
    Launcher(PBS_JOB, job_markers=("PBS_NODEFILE", "PBS_TASKNUM")),
)
RANK_VARIABLES = tuple(dict.fromkeys(launcher.rank for launcher in LAUNCHERS if launcher.rank))
"""The variables that contain a process's rank."""


def read_claims(environ: Mapping[str, str]) -> tuple[RankClaim, ...]:
    """Return one claim for each launcher with variables for this process, in the order of LAUNCHERS.

    Raises LaunchError for incomplete, non-numeric or impossible values, with the variable, its value and advice.
    """
    claims = tuple(claim for launcher in LAUNCHERS if (claim := _read_claim(launcher, environ)) is not None)
    has_other_rank = any(claim.rank is not None for claim in claims if claim.source not in OVER_TCP)
    for claim in claims:
        if claim.source in OVER_TCP and not has_other_rank:
            _check_torchrun_alone(claim, environ)
    return claims


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that make a process a rank or part of a job, to start an independent launch.

    Settings of the MPI libraries are kept (`OMPI_MCA_...`, `MPIR_CVAR_...`).
    """
    return {name: value for name, value in environ.items() if not _OF_A_RANK.match(name) or _SETTING.match(name)}


def claimed_rank(environ: Mapping[str, str]) -> int:
    """Return the rank from the first valid variable, otherwise 0: only to choose the process that prints an error.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables of the process.

    Returns
    -------
    int
        Rank from 0. The launchers are tried in the order of LAUNCHERS, but the Slurm step last.

    Notes
    -----
    Raises no exception: an invalid value is skipped. A rank that is not less than the world size is invalid:
    otherwise no process might be rank 0 and print.
    """
    # The Slurm step last: launchers inside a step inherit its variables.
    for launcher in sorted(LAUNCHERS, key=lambda one: one.source == SLURM_STEP):
        value, size = environ.get(launcher.rank, ""), environ.get(launcher.world_size, "")
        is_outside = size.isdecimal() and value.isdecimal() and int(value) >= int(size)
        if value.isascii() and value.isdigit() and not is_outside:
            return int(value)
    return 0


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Return whether a variable has a value; an empty one counts as unset.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables.
    name : str
        Name of the variable; an empty name is never set.

    Returns
    -------
    bool
        True if the variable exists and is not empty.
    """
    return bool(name) and environ.get(name, "") != ""


def _read_claim(launcher: Launcher, environ: Mapping[str, str]) -> RankClaim | None:
    if launcher.job_markers:
        seen = tuple(name for name in launcher.job_markers if is_set(environ, name))
        return RankClaim(launcher.source, variables=seen) if seen else None
    if not _is_active(launcher, environ):
        return None
    _check_not_half_set(launcher, environ)
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
    names = {field: getattr(launcher, field) for field in fields if is_set(environ, getattr(launcher, field))}
    numbers = {field: _read_number(launcher, name, environ[name]) for field, name in names.items()}
    is_by_hand = launcher.source == TORCHRUN and not is_set(environ, "TORCHELASTIC_RUN_ID")
    source = BY_HAND if is_by_hand else launcher.source
    claim = RankClaim(source, **numbers, variables=tuple(names.values()))
    _check_ranges(launcher, claim)
    return _add_local_world_size(launcher, claim, environ)


def _is_active(launcher: Launcher, environ: Mapping[str, str]) -> bool:
    if launcher.only_with and not is_set(environ, launcher.only_with):
        return False
    if is_set(environ, launcher.not_with):
        return False
    if launcher.source == SLURM_STEP and environ.get("SLURM_STEP_ID") in SHELL_STEP_IDS:
        return False
    return is_set(environ, launcher.rank) or is_set(environ, launcher.world_size)


def _check_not_half_set(launcher: Launcher, environ: Mapping[str, str]) -> None:
    has_rank, has_size = is_set(environ, launcher.rank), is_set(environ, launcher.world_size)
    # WORLD_SIZE alone is common in job scripts whose ranks are started by srun; read_claims checks it again.
    if launcher.half_allowed or (has_size and (has_rank or launcher.source == TORCHRUN)):
        return
    name, missing = (launcher.rank, launcher.world_size) if has_rank else (launcher.world_size, launcher.rank)
    raise LaunchError(
        f"{name}={environ[name]} without {missing}: {launcher.source} sets both; `unset {name}` to train with one "
        f"process, or start with `{launcher.start_command}`"
    )


def _read_number(launcher: Launcher, name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise LaunchError(
        f"{name}={text}: not a whole number of 0 or more, which is what {launcher.source} sets; "
        f"`unset {name}`, or start with `{launcher.start_command}`"
    )


def _check_ranges(launcher: Launcher, claim: RankClaim) -> None:
    for rank_field, size_field in (
        ("rank", "world_size"),
        ("local_rank", "local_world_size"),
        ("node_rank", "num_nodes"),
    ):
        number, count = getattr(claim, rank_field), getattr(claim, size_field)
        rank_name, size_name = getattr(launcher, rank_field), getattr(launcher, size_field)
        if count == 0:
            raise LaunchError(
                f"{size_name}=0: at least 1 is needed; `unset {size_name}`, or start with `{launcher.start_command}`"
            )
        if number is not None and count is not None and number >= count:
            raise LaunchError(
                f"{rank_name}={number} with {size_name}={count}: allowed are 0 to {count - 1}; "
                f"`unset {rank_name} {size_name}`, or start with `{launcher.start_command}`"
            )


def _add_local_world_size(launcher: Launcher, claim: RankClaim, environ: Mapping[str, str]) -> RankClaim:
    name = launcher.tasks_per_node
    if not is_set(environ, name) or claim.node_rank is None:
        return claim
    counts = expand_tasks_per_node(environ[name])
    if claim.node_rank >= len(counts) or sum(counts) != claim.world_size:
        raise LaunchError(
            f"{name}={environ[name]} does not fit {launcher.world_size}={claim.world_size} on node "
            f"{claim.node_rank}: one of them was set by hand; `unset {name}`, or start with `{launcher.start_command}`"
        )
    return replace(claim, local_world_size=counts[claim.node_rank], variables=(*claim.variables, name))


def _check_torchrun_alone(claim: RankClaim, environ: Mapping[str, str]) -> None:
    if claim.rank is None:
        raise LaunchError(
            f"WORLD_SIZE={claim.world_size} without RANK: the rank of this process is unknown; `unset WORLD_SIZE` to "
            "train with one process, or start with `torchrun --nproc-per-node 4 -m mpitrain`"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not is_set(environ, name)]
    if missing and (claim.world_size or 1) > 1:
        raise LaunchError(
            f"RANK={claim.rank} WORLD_SIZE={claim.world_size} without {' and '.join(missing)}: several ranks "
            "need a rendezvous address; set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port, "
            "or start with `torchrun --nproc-per-node 4 -m mpitrain`"
        )


def without_inherited(claims: Sequence[RankClaim], environ: Mapping[str, str]) -> tuple[RankClaim, ...]:
    """Return the claims without those that describe another process.

    * Multi-node mpirun and Flux inside Slurm start one daemon per node with srun; ranks inherit the daemons' step.
    * An mpirun started in an interactive shell (`srun --pty bash`) inherits the step of the shell.
    * torchrun inside a step with one task per node: the step's tasks are torchrun's agents, not ranks.
    """
    own = [claim for claim in claims if not _is_of_torchrun_agents(claim, environ)]
    if any(claim.source in (OPEN_MPI, HYDRA, FLUX) and (claim.world_size or 1) > 1 for claim in own):
        own = [claim for claim in own if not _is_around_mpirun(claim, environ)]
    if any(claim.source in OVER_TCP and (claim.world_size or 1) > 1 for claim in own):
        own = [claim for claim in own if not _is_shell_step(claim, environ)]
    return tuple(own)


def _is_of_torchrun_agents(claim: RankClaim, environ: Mapping[str, str]) -> bool:
    if claim.source == TORCHRUN or not is_set(environ, "TORCHELASTIC_RUN_ID"):
        return False
    return str(claim.world_size) == environ.get("GROUP_WORLD_SIZE")


def _is_around_mpirun(claim: RankClaim, environ: Mapping[str, str]) -> bool:
    is_daemon_step = claim.source == SLURM_STEP and claim.world_size == claim.num_nodes
    return is_daemon_step or _is_shell_step(claim, environ)


def _is_shell_step(claim: RankClaim, environ: Mapping[str, str]) -> bool:
    return claim.source == SLURM_STEP and is_set(environ, "SLURM_PTY_PORT")
