"""Kinds of jobs by name; every value can be changed by its own flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # two ranks, soon started and soon over: does it run at all?
    "debug": {"tasks_per_node": 2, "walltime": "00:10:00", "signal_s": 60, "requeue": False, "log_level": "debug"},
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
