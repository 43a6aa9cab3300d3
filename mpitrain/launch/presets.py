"""Kinds of jobs by name, and the size of one that trains many networks; each value can be changed by its own flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `--help` shows the presets, and must not load what reads settings
    from mpitrain.config import EnsembleSection

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # two ranks, soon started and soon over: does it run at all?
    "debug": {
        "tasks_per_node": 2,
        "walltime": "00:10:00",
        "signal_s": 60,
        "requeue": False,
        "log_level": "debug",
        "nccl_debug": "INFO",
    },
    "single_gpu": {"gpus_per_node": 1, "cpus_per_task": 8, "walltime": "04:00:00", "mpi": "none"},
    # NCCL finds its peers over TCP: no MPI between the ranks, so no PMI to get wrong
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
    # eight ranks in all: the number of virtual ranks, up to which results are equal bit for bit
    "cpu_cluster": {"nodes": 2, "tasks_per_node": 4, "walltime": "04:00:00"},
}


def ranks_for(section: EnsembleSection, most: int) -> int:
    """Return how many ranks train an ensemble's members as soon as `most` ranks would, with none idle at the end."""
    each = 1 if section.ranks_per_member == "auto" else section.ranks_per_member
    groups = max(1, most // each)
    rounds = -(-section.num_members // groups)
    return each * -(-section.num_members // rounds)


def describe_ranks(section: EnsembleSection, ranks: int) -> str:
    """Return the line that says how an ensemble's members come to the ranks of a job."""
    rounds = section.num_members / ranks
    share = f"{rounds:.3g} members a rank" if rounds >= 1 else f"{1 / rounds:.3g} ranks a member"
    return f"{section.num_members} members on {ranks} rank{'s' if ranks > 1 else ''}: {share}"
