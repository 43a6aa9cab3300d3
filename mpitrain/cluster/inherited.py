"""Claims that belong to an outer launcher and were merely inherited by this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpitrain.cluster.launchers import FLUX, HYDRA, OPEN_MPI, SLURM_STEP, TORCHRUN, is_set
from mpitrain.cluster.rank_info import RankClaim


def without_inherited(claims: Sequence[RankClaim], environ: Mapping[str, str]) -> tuple[RankClaim, ...]:
    """Leave out claims that do not speak of this process.

    * Multi-node mpirun and Flux inside Slurm start one daemon a node with srun; ranks inherit the daemons' step.
    * An interactive shell (`srun --pty bash`) passes its step on to the mpirun typed into it.
    * torchrun inside a step of one task a node: the step's tasks are torchrun's agents, not ranks.
    """
    own = [claim for claim in claims if not _is_of_torchrun_agents(claim, environ)]
    if any(claim.source in (OPEN_MPI, HYDRA, FLUX) and (claim.world_size or 1) > 1 for claim in own):
        own = [claim for claim in own if not _is_around_mpirun(claim, environ)]
    if any(claim.source == TORCHRUN and (claim.world_size or 1) > 1 for claim in own):
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
