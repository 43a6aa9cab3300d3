"""Presets: values of a job request for common kinds of jobs, which options override; and the size of ensemble jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `--help` shows the presets, and must not load the package of settings
    from mpitrain.config import EnsembleSection

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # two ranks and a short time limit: a quick test that a job runs at all
    "debug": {
        "tasks_per_node": 2,
        "walltime": "00:10:00",
        "signal_s": 60,
        "requeue": False,
        "log_level": "debug",
        "nccl_debug": "INFO",
    },
    "single_gpu": {"gpus_per_node": 1, "cpus_per_task": 8, "walltime": "04:00:00", "mpi": "none"},
    # NCCL connects its ranks over TCP: without MPI between the ranks, no PMI must be configured
    "multi_gpu": {"tasks_per_node": 4, "gpus_per_node": 4, "cpus_per_task": 8, "walltime": "08:00:00", "mpi": "none"},
    "multi_node": {
        "nodes": 2,
        "tasks_per_node": 4,
        "gpus_per_node": 4,
        "cpus_per_task": 8,
        "walltime": "12:00:00",
        "mpi": "none",
        "network": "ib",
    },
    # eight ranks in total: results are equal bit for bit up to the number of virtual ranks
    "cpu_cluster": {"nodes": 2, "tasks_per_node": 4, "walltime": "04:00:00"},
}


def ranks_for(section: EnsembleSection, most: int) -> int:
    """Return the smallest number of ranks that train an ensemble's members in as many rounds as `most` ranks would."""
    each = 1 if section.ranks_per_member == "auto" else section.ranks_per_member
    groups = max(1, most // each)
    rounds = -(-section.num_members // groups)
    return each * -(-section.num_members // rounds)


def describe_ranks(section: EnsembleSection, ranks: int) -> str:
    """Return a line with the number of an ensemble's members, of ranks, and their ratio."""
    rounds = section.num_members / ranks
    share = f"{rounds:.3g} members a rank" if rounds >= 1 else f"{1 / rounds:.3g} ranks a member"
    return f"{section.num_members} members on {ranks} rank{'s' if ranks > 1 else ''}: {share}"
