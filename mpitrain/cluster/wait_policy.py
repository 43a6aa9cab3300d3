"""What an MPI library must be told before it starts, where ranks outnumber cores."""

from __future__ import annotations

from collections.abc import Mapping

from mpitrain.cluster.cores import usable_core_count
from mpitrain.cluster.launchers import read_claims

# A rank that waits spins, and the rank that it waits for cannot run: these make it give its core away.
YIELDING_VARIABLES = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}


def yielding_variables(environ: Mapping[str, str], num_cores: int, cgroup_cpu_max: str | None) -> dict[str, str]:
    """Return MPICH's and Open MPI's variables for waiting politely, if this host's ranks outnumber its cores.

    The number of ranks is what the launcher's variables say; without them nothing is set.
    """
    local_world_size = max((claim.local_world_size or 1 for claim in read_claims(environ)), default=1)
    if local_world_size <= usable_core_count(range(num_cores), cgroup_cpu_max):
        return {}
    return dict(YIELDING_VARIABLES)
