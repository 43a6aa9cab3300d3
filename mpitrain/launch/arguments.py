"""The flags of `mpitrain launch`, and its presets. Loads nothing but argparse, so that `--help` answers at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # two ranks, soon started and soon over: does it run at all?
    "debug": {"tasks_per_node": 2, "walltime": "00:10:00", "signal_s": 60, "requeue": False, "log_level": "debug"},
    "single_gpu": {"gpus_per_node": 1, "cpus_per_task": 8, "walltime": "04:00:00", "mpi": "none"},
    # NCCL finds its peers over TCP: no MPI between the ranks, so no PMI to get wrong
    "multi_gpu": {
        "tasks_per_node": 4,
        "gpus_per_node": 4,
        "cpus_per_task": 8,
        "walltime": "08:00:00",
        "mpi": "none",
    },
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


# Fields of a job request that one flag of the same name sets: flag words, then argparse's own arguments.
_FIELDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "nodes": (("-N", "--nodes"), {"type": int, "metavar": "N", "help": "hosts (default: 1)"}),
    "tasks_per_node": (("--tasks-per-node",), {"type": int, "metavar": "N", "help": "ranks on each host (default: 1)"}),
    "num_tasks": (("-n", "--ntasks"), {"type": int, "metavar": "N", "help": "ranks in all"}),
    "gpus_per_node": (("--gpus-per-node",), {"type": int, "metavar": "N", "help": "GPUs of each host (default: 0)"}),
    "cpus_per_task": (("--cpus-per-task",), {"type": int, "metavar": "N", "help": "cores of each rank (default: 1)"}),
    "memory": (("--memory",), {"metavar": "64G", "help": "memory of each host"}),
    "walltime": (
        ("--walltime", "--time"),
        {"metavar": "HH:MM:SS", "help": "time limit; also D-HH:MM:SS or minutes (default: 01:00:00)"},
    ),
    "signal_s": (
        ("--signal-seconds",),
        {"type": int, "metavar": "S", "help": "write a checkpoint so long before the limit (default: 120)"},
    ),
    "requeue": (
        ("--requeue",),
        {"action": argparse.BooleanOptionalAction, "help": "go on by itself after the limit or a lost host"},
    ),
    "partition": (("--partition", "--queue"), {"metavar": "NAME", "help": "Slurm's partition, PBS's queue"}),
    "account": (("--account",), {"metavar": "NAME", "help": "whom the time is charged to"}),
    "job_name": (("--job-name",), {"metavar": "NAME", "help": "name in the queue (default: mpitrain)"}),
    "mail": (("--mail",), {"metavar": "ADDRESS", "help": "who is told of the end"}),
    "modules": (
        ("--module",),
        {"action": "append", "metavar": "NAME", "help": "environment module to load; repeatable"},
    ),
    "environment": (("--env",), {"action": "append", "metavar": "NAME=VALUE", "help": "variable to set; repeatable"}),
    "mpi": (
        ("--mpi",),
        {"choices": ("pmi2", "pmix", "none"), "help": "srun's: pmi2 for MPICH and Intel MPI, pmix for Open MPI"},
    ),
    "network": (("--network",), {"choices": ("ib", "ethernet"), "help": "InfiniBand or Ethernet between the hosts"}),
    "interface": (("--interface",), {"metavar": "NAME", "help": "network interface, such as eth0 or ib0"}),
    "adapters": (("--adapters",), {"metavar": "NAMES", "help": "InfiniBand adapters, such as mlx5_0,mlx5_1"}),
    "nccl_debug": (("--nccl-debug",), {"choices": ("VERSION", "WARN", "INFO", "TRACE"), "help": "how much NCCL tells"}),
    "log_level": (
        ("--log-level",),
        {"choices": ("debug", "info", "warning", "error"), "help": "how much the ranks' logs hold"},
    ),
    "python": (("--python",), {"metavar": "PATH", "help": "the ranks' interpreter (default: the one that runs this)"}),
    "master_port": (("--master-port",), {"type": int, "metavar": "PORT", "help": "manual: where the ranks meet"}),
}


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all flags but the settings of the run."""
    parser.add_argument(
        "--scheduler",
        choices=("slurm", "pbs", "local", "manual"),
        default="slurm",
        help="slurm and pbs: a batch script; local: mpirun on this host; manual: commands for each host",
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), help="a kind of job; flags beside it win")
    for name, (flags, options) in _FIELDS.items():
        parser.add_argument(*flags, dest=name, **options)
    parser.add_argument("--hosts", metavar="A,B,...", help="manual: the hosts' names, the meeting point first")
    parser.add_argument(
        "--sweep", action="append", metavar="key=a,b,...", help="a job for each value, of several for each combination"
    )
    parser.add_argument(
        "--run", choices=("train", "doctor", "data generate"), help="what the job runs (default: train)"
    )
    parser.add_argument("--output", metavar="FILE", help="write the script there instead of printing it")
    parser.add_argument("--submit", action="store_true", help="check, send it, and print the job's number")


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a job request that the user's flags name."""
    values = {name: getattr(options, name) for name in _FIELDS}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
