"""The command `launch`: flags and handler. Loads nothing but argparse until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpitrain.cli.older_flags import advice_for_words
from mpitrain.cli.settings import add_overwrite_flag, add_settings, is_file, split_settings
from mpitrain.errors import UserError
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
    "signal_s": {
        "type": int,
        "metavar": "S",
        "help": "seconds before the limit at which a checkpoint is written (default: 120)",
    },
    "requeue": {
        "action": argparse.BooleanOptionalAction,
        "help": "whether the job continues by itself after the limit or a lost host (default: yes)",
    },
    "restarts": {
        "type": int,
        "metavar": "N",
        "help": "slurm, local: number of restarts on the hosts or ranks that are left",
    },
    "partition": {"metavar": "NAME", "help": "Slurm's partition, PBS's queue"},
    "account": {"metavar": "NAME", "help": "account that the time is charged to"},
    "job_name": {"metavar": "NAME", "help": "name in the queue (default: mpitrain)"},
    "mail": {"metavar": "ADDRESS", "help": "address that gets a mail when the job ends"},
    "modules": {"action": "append", "metavar": "NAME", "help": "environment module to load; repeatable"},
    "environment": {"action": "append", "metavar": "NAME=VALUE", "help": "variable to set; repeatable"},
    "mpi": {
        "choices": ("pmi2", "pmix", "none"),
        "help": "for srun --mpi: pmi2 for MPICH and Intel MPI, pmix for Open MPI",
    },
    "network": {"choices": ("ib", "ethernet"), "help": "InfiniBand or Ethernet between the hosts"},
    "interface": {"metavar": "NAME", "help": "network interface, such as eth0 or ib0"},
    "adapters": {"metavar": "NAMES", "help": "InfiniBand adapters, such as mlx5_0,mlx5_1"},
    "nccl_debug": {"choices": ("VERSION", "WARN", "INFO", "TRACE"), "help": "value of NCCL_DEBUG"},
    "log_level": {
        "type": str.lower,
        "choices": ("debug", "info", "warning", "error"),
        "help": "level of the ranks' logs",
    },
    "python": {"metavar": "PATH", "help": "Python interpreter of the ranks (default: this one)"},
    "packed_environment": {
        "metavar": "FILE.tar",
        "help": "slurm, pbs, torque: a packed Python environment (tar, conda-pack); each host unpacks it, and its "
        "ranks load nothing of it from the shared file system",
    },
    "run_folder": {"help": argparse.SUPPRESS},
    "host_number": {"type": int, "help": argparse.SUPPRESS},
    "master_port": {"type": int, "metavar": "PORT", "help": "manual: port on the first host at which the ranks meet"},
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
        "launch", help="write a job script, or submit it", description="Write a job script; with --submit, submit it."
    )
    add_settings(launch)
    _add_flags(launch)
    launch.set_defaults(handler=_run_launch)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler",
        choices=("slurm", "pbs", "torque", "local", "manual"),
        help="slurm, pbs, torque: a batch script; local: mpirun on this host; manual: commands for each host (default: "
        "the one of this host)",
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), help="values for a kind of job; other flags override them")
    for name, options in _FIELDS.items():
        parser.add_argument(*_FLAGS.get(name, (f"--{name.replace('_', '-')}",)), dest=name, **options)
    parser.add_argument("--hosts", metavar="A,B,...", help="manual: names of the hosts; the ranks meet at the first")
    parser.add_argument(
        "--sweep",
        action="append",
        metavar="key=a,b,...",
        help="a job for each value, or for each combination of several; with --ensemble all in one job",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run", choices=("train", "ensemble", "doctor", "data generate"), help="what the job runs (default: train)"
    )
    what.add_argument(
        "--ensemble", dest="run", action="store_const", const="ensemble",
        help="train the members of the section ensemble in one job, with --sweep's values as its grid (default size: "
        "this host's number of cores)",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write the script there instead of printing it")
    add_overwrite_flag(parser)
    parser.add_argument("--inside-job", action="store_true", help="start the ranks of this job; the scripts use it")
    parser.add_argument("--submit", action="store_true", help="check and submit the job, and print its number")


def _run_launch(options: argparse.Namespace) -> int:
    from mpitrain.launch.command import run_launch

    wrong = [word for word in options.settings if "=" not in word and not is_file(word) and not Path(word).exists()]
    if wrong and (advice := advice_for_words("launch", wrong)):
        raise UserError(advice)
    return run_launch(options, _given_fields(options), *split_settings(options.settings))


def _given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a job request that the user's flags name."""
    values = {name: getattr(options, name) for name in _FIELDS}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
