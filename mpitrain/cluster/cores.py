"""Usable cores of a node, threads a rank, and what to warn of and set where ranks outnumber cores."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from mpitrain.cluster.launchers import read_claims

# By default a rank that waits uses its core all the time, and the rank that it waits for cannot run.
WAIT_POLICY_VARIABLES = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
OVERSUBSCRIBED_VARIABLES = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
"""Open MPI refuses more ranks than cores without these."""
_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_core_count(affinity: Collection[int], cgroup_cpu_max: str | None) -> int:
    """Cores that may be used: the affinity mask, cut by a cgroup's quota (`"200000 100000"` is 2 cores), at least 1.

    For a node's ranks together pass the union of their masks: mpirun often binds each rank to one core of its own.
    A fraction of a core is dropped, since a thread more than the quota is throttled. Unreadable quotas are ignored.
    """
    cores, words = max(1, len(set(affinity))), (cgroup_cpu_max or "").split()
    # Quota and period in microseconds; the quota may be `max`.
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words) or int(words[1]) == 0:
        return cores
    return max(1, min(cores, int(words[0]) // int(words[1])))


def detect_affinity() -> frozenset[int]:
    """Read the core numbers that this process may run on; all of the machine's where the system does not tell."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        return frozenset(range(os.cpu_count() or 1))


def read_cgroup_cpu_max(path: Path = _CGROUP_CPU_MAX) -> str | None:
    """Read the text of the container's CPU quota, None where there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def detect_usable_core_count() -> int:
    """Cores that this one process may use, at least 1."""
    return usable_core_count(detect_affinity(), read_cgroup_cpu_max())


def threads_per_rank(
    requested: int | None, reduction_is_fixed_or_reference: bool, cores: int, local_world_size: int
) -> int:
    """Threads for each rank: as requested; else 1 where bits are promised, since they change with the thread count.

    Else the node's usable cores (see usable_core_count) shared by its ranks, at least 1.
    """
    if requested is not None:
        return requested
    if reduction_is_fixed_or_reference:
        return 1
    return max(1, cores // max(1, local_world_size))


def oversubscription_warning(local_world_size: int, threads: int, cores: int, host: str) -> str | None:
    """One line with what to do where the ranks of a node run more threads than it has cores, else None."""
    wanted = local_world_size * threads
    if wanted <= cores:
        return None
    start = f"{host}: {local_world_size} ranks with {threads} thread(s) each share {cores} core(s), steps will be slow"
    if local_world_size > cores:
        return f"{start}; start at most {cores} rank(s) on a node, or ask the scheduler for {wanted} cores"
    fitting = cores // local_world_size
    return f"{start}; set training.threads_per_rank={fitting}, or ask the scheduler for {wanted} cores"


def wait_policy_variables(environ: Mapping[str, str], num_cores: int, cgroup_cpu_max: str | None) -> dict[str, str]:
    """Return what makes MPICH's and Open MPI's waiting ranks give their core to others, where ranks outnumber cores.

    The number of ranks is what the launcher's variables say; without them nothing is set.
    """
    local_world_size = max((claim.local_world_size or 1 for claim in read_claims(environ)), default=1)
    if local_world_size <= usable_core_count(range(num_cores), cgroup_cpu_max):
        return {}
    return dict(WAIT_POLICY_VARIABLES)
