"""Usable cores of a node, threads per rank, and warnings and variables for oversubscription."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from mpitrain.cluster.launchers import read_claims

# By default a waiting rank polls and so occupies its core, on which the rank that it waits for cannot run.
WAIT_POLICY_VARIABLES = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
OVERSUBSCRIBED_VARIABLES = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""Without these variables Open MPI refuses to start more ranks than cores."""
_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_core_count(affinity: Collection[int], cgroup_cpu_max: str | None) -> int:
    """Return the number of usable cores, at least 1: the affinity mask, limited by the cgroup's CPU quota.

    A quota of `"200000 100000"` is 2 cores. For all ranks of a node pass the union of their masks: mpirun often binds
    each rank to its own core. Fractions of a core are dropped, since a thread above the quota is throttled. A quota
    that cannot be parsed is ignored.
    """
    cores, tokens = max(1, len(set(affinity))), (cgroup_cpu_max or "").split()
    # Quota and period in microseconds; the quota may be `max`.
    if len(tokens) != 2 or not all(token.isascii() and token.isdigit() for token in tokens) or int(tokens[1]) == 0:
        return cores
    return max(1, min(cores, int(tokens[0]) // int(tokens[1])))


def detect_affinity() -> frozenset[int]:
    """Return the cores on which this process may run.

    Returns
    -------
    frozenset of int
        The process's affinity mask; all cores, from 0, if the system has no affinity masks (macOS).
    """
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        return frozenset(range(os.cpu_count() or 1))


def read_cgroup_cpu_max(path: Path = _CGROUP_CPU_MAX) -> str | None:
    """Return the text of the container's CPU quota; None if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def detect_usable_core_count() -> int:
    """Return the number of cores that this process may use.

    Returns
    -------
    int
        Size of the process's affinity mask, limited by the CPU quota of its container (cgroup v2); at least 1.

    Notes
    -----
    For this process only: mpirun often binds each rank to its own core. All ranks of a node together may use
    `Ranks.node_cores` cores.
    """
    return usable_core_count(detect_affinity(), read_cgroup_cpu_max())


def threads_per_rank(
    requested: int | None, reduction_is_fixed_or_reference: bool, cores: int, local_world_size: int
) -> int:
    """Return the number of threads per rank: `requested` if it is not None.

    Otherwise 1 if results are bitwise reproducible, since they depend on the number of threads; otherwise the node's
    usable cores (see `usable_core_count`) divided by its ranks, at least 1.
    """
    if requested is not None:
        return requested
    if reduction_is_fixed_or_reference:
        return 1
    return max(1, cores // max(1, local_world_size))


def oversubscription_warning(local_world_size: int, threads: int, cores: int, host: str) -> str | None:
    """Return a warning with advice if the ranks of a node run more threads than it has cores; otherwise None."""
    wanted = local_world_size * threads
    if wanted <= cores:
        return None
    start = f"{host}: {local_world_size} ranks with {threads} thread(s) each share {cores} core(s), steps will be slow"
    if local_world_size > cores:
        return f"{start}; start at most {cores} rank(s) on a node, or ask the scheduler for {wanted} cores"
    fitting = cores // local_world_size
    return f"{start}; set training.threads_per_rank={fitting}, or ask the scheduler for {wanted} cores"


def wait_policy_variables(environ: Mapping[str, str], num_cores: int, cgroup_cpu_max: str | None) -> dict[str, str]:
    """Return variables that make waiting ranks of MPICH and Open MPI yield their core; {} if there are enough cores.

    The number of ranks is read from the launcher's variables; without them it is 1.
    """
    local_world_size = max((claim.local_world_size or 1 for claim in read_claims(environ)), default=1)
    if local_world_size <= usable_core_count(range(num_cores), cgroup_cpu_max):
        return {}
    return dict(WAIT_POLICY_VARIABLES)
