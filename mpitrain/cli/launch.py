"""The command `launch`: flags and handler. Loads nothing but argparse until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from mpitrain.cli.settings import add_settings, split_settings
from mpitrain.launch.presets import PRESETS

# Fields of a job request that one flag sets, with argparse's own arguments.
_FIELDS: dict[str, dict[str, Any]] = {
    "nodes": {"type": int, "metavar": "N", "help": "hosts (default: 1)"},
    "tasks_per_node": {"type": int, "metavar": "N", "help": "ranks on each host (default: 1, or one a GPU)"},
    "num_tasks": {"type": int, "metavar": "N", "help": "ranks in all"},
    "gpus_per_node": {"type": int, "metavar": "N", "help": "GPUs of each host (default: 0)"},
    "cpus_per_task": {"type": int, "metavar": "N", "help": "cores of each rank (default: 1)"},
    "memory": {"metavar": "64G", "help": "memory of each host"},
    "walltime": {"metavar": "HH:MM:SS", "help": "time limit; also D-HH:MM:SS or minutes (default: 01:00:00)"},
    "signal_s": {"type": int, "metavar": "S", "help": "write a checkpoint so long before the limit (default: 120)"},
    "requeue": {"action": argparse.BooleanOptionalAction, "help": "go on by itself after the limit or a lost host"},
    "restarts": {"type": int, "metavar": "N", "help": "slurm, local: start again on what is left, so often"},
    "partition": {"metavar": "NAME", "help": "Slurm's partition, PBS's queue"},
    "account": {"metavar": "NAME", "help": "whom the time is charged to"},
    "job_name": {"metavar": "NAME", "help": "name in the queue (default: mpitrain)"},
    "mail": {"metavar": "ADDRESS", "help": "who is told of the end"},
    "modules": {"action": "append", "metavar": "NAME", "help": "environment module to load; repeatable"},
    "environment": {"action": "append", "metavar": "NAME=VALUE", "help": "variable to set; repeatable"},
    "mpi": {"choices": ("pmi2", "pmix", "none"), "help": "srun's: pmi2 for MPICH and Intel MPI, pmix for Open MPI"},
    "network": {"choices": ("ib", "ethernet"), "help": "InfiniBand or Ethernet between the hosts"},
    "interface": {"metavar": "NAME", "help": "network interface, such as eth0 or ib0"},
    "adapters": {"metavar": "NAMES", "help": "InfiniBand adapters, such as mlx5_0,mlx5_1"},
    "nccl_debug": {"choices": ("VERSION", "WARN", "INFO", "TRACE"), "help": "how much NCCL tells"},
    "log_level": {
        "type": str.lower,
        "choices": ("debug", "info", "warning", "error"),
        "help": "how much the ranks' logs hold",
    },
    "python": {"metavar": "PATH", "help": "the ranks' interpreter (default: the one that runs this)"},
    "packed_environment": {
        "metavar": "FILE.tar",
        "help": "slurm, pbs: a packed Python environment (tar, conda-pack); each host unpacks it for its ranks, "
        "which then load nothing of it from the shared file system",
    },
    "master_port": {"type": int, "metavar": "PORT", "help": "manual: where the ranks meet"},
}
# The flags of those whose only flag is not the field's name with dashes.
_FLAGS = {
    "nodes": ("-N", "--nodes"),
    "num_tasks": ("-n", "--ntasks"),
    "walltime": ("--walltime", "--time"),
    "signal_s": ("--signal-seconds",),
    "partition": ("--partition", "--queue"),
    "modules": ("--module",),
    "environment": ("--env",),
}


def add_launch_command(commands: Any) -> None:
    """Add `launch` to argparse's subparsers."""
    launch = commands.add_parser(
        "launch", help="write or send a job script", description="Write a job script, or send it with --submit."
    )
    add_settings(launch)
    _add_flags(launch)
    launch.set_defaults(handler=_run_launch)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler",
        choices=("slurm", "pbs", "local", "manual"),
        help="slurm and pbs: a batch script; local: mpirun on this host; manual: commands for each host (default: the "
        "one of this host)",
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), help="a kind of job; other flags win over its values")
    for name, options in _FIELDS.items():
        parser.add_argument(*_FLAGS.get(name, (f"--{name.replace('_', '-')}",)), dest=name, **options)
    parser.add_argument("--hosts", metavar="A,B,...", help="manual: the hosts' names, the meeting point first")
    parser.add_argument(
        "--sweep",
        action="append",
        metavar="key=a,b,...",
        help="a job for each value, of several for each combination; with --ensemble all in one job",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run", choices=("train", "ensemble", "doctor", "data generate"), help="what the job runs (default: train)"
    )
    what.add_argument(
        "--ensemble", dest="run", action="store_const", const="ensemble",
        help="train the members of the section ensemble in one job, with --sweep's values as its grid; without a size "
        "on this host's number of cores",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write the script there instead of printing it")
    parser.add_argument("--submit", action="store_true", help="check, send it, and print the job's number")


def _run_launch(options: argparse.Namespace) -> int:
    from mpitrain.launch.submit import run_launch

    return run_launch(options, _given_fields(options), *split_settings(options.settings))


def _given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a job request that the user's flags name."""
    values = {name: getattr(options, name) for name in _FIELDS}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
