"""The command `launch`: options and handler. Loads only argparse until it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpitrain.cli.older_flags import advice_for_arguments
from mpitrain.cli.settings import add_overwrite_flag, add_settings, is_file, split_settings
from mpitrain.errors import UserError
from mpitrain.launch.presets import PRESETS

# Fields of a job request, each set by one option, with the arguments of argparse's add_argument.
_FIELDS: dict[str, dict[str, Any]] = {
    "nodes": {"type": int, "metavar": "N", "help": "hosts (default: 1)"},
    "tasks_per_node": {"type": int, "metavar": "N", "help": "ranks per host (default: 1, or one per GPU)"},
    "num_tasks": {"type": int, "metavar": "N", "help": "total number of ranks"},
    "gpus_per_node": {"type": int, "metavar": "N", "help": "GPUs per host (default: 0)"},
    "cpus_per_task": {"type": int, "metavar": "N", "help": "cores per rank (default: 1)"},
    "memory": {"metavar": "64G", "help": "memory per host"},
    "walltime": {"metavar": "HH:MM:SS", "help": "time limit; also D-HH:MM:SS or minutes (default: 01:00:00)"},
    "signal_s": {
        "type": int,
        "metavar": "S",
        "help": "seconds before the time limit at which a checkpoint is written (default: 120)",
    },
    "requeue": {
        "action": argparse.BooleanOptionalAction,
        "help": "whether the job is requeued automatically after the loss of a host, and by slurm near its time limit "
        "(default: yes)",
    },
    "restarts": {
        "type": int,
        "metavar": "N",
        "help": "slurm, local: number of restarts on the remaining hosts or ranks",
    },
    "partition": {"metavar": "NAME", "help": "Slurm partition or PBS queue"},
    "account": {"metavar": "NAME", "help": "account to charge"},
    "job_name": {"metavar": "NAME", "help": "job name (default: mpitrain)"},
    "mail": {"metavar": "ADDRESS", "help": "e-mail address to notify when the job ends"},
    "modules": {"action": "append", "metavar": "NAME", "help": "environment module to load; repeatable"},
    "environment": {"action": "append", "metavar": "NAME=VALUE", "help": "environment variable to set; repeatable"},
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
        "help": "slurm, pbs, torque: a packed Python environment (tar, conda-pack); each host unpacks it locally, so "
        "that its ranks do not load it from the shared file system",
    },
    "run_folder": {"help": argparse.SUPPRESS},
    "host_number": {"type": int, "help": argparse.SUPPRESS},
    "master_port": {"type": int, "metavar": "PORT", "help": "manual: port on the first host at which the ranks meet"},
}
# Options of the fields for which the option is not, or not only, the field's name with dashes.
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
        "the scheduler found on this host)",
    )
    parser.add_argument(
        "--preset", choices=tuple(PRESETS), help="defaults for a kind of job; other options override them"
    )
    for name, options in _FIELDS.items():
        parser.add_argument(*_FLAGS.get(name, (f"--{name.replace('_', '-')}",)), dest=name, **options)
    parser.add_argument("--hosts", metavar="A,B,...", help="manual: names of the hosts; the ranks meet at the first")
    parser.add_argument(
        "--sweep",
        action="append",
        metavar="key=a,b,...",
        help="one job per value, or per combination if repeated; with --ensemble all values in one job",
    )
    jobs = parser.add_mutually_exclusive_group()
    jobs.add_argument(
        "--run", choices=("train", "ensemble", "doctor", "data generate"), help="what the job runs (default: train)"
    )
    jobs.add_argument(
        "--ensemble", dest="run", action="store_const", const="ensemble",
        help="train the members of the section ensemble in one job, with the values of --sweep as its grid (default "
        "number of ranks: at most this host's number of cores)",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="write the script there instead of printing it")
    add_overwrite_flag(parser)
    parser.add_argument("--inside-job", action="store_true", help="start the ranks of this job; used by the scripts")
    parser.add_argument("--submit", action="store_true", help="check and submit the job, and print its job number")


def _run_launch(options: argparse.Namespace) -> int:
    from mpitrain.launch.command import run_launch

    wrong = [
        argument
        for argument in options.settings
        if "=" not in argument and not is_file(argument) and not Path(argument).exists()
    ]
    if wrong and (advice := advice_for_arguments("launch", wrong)):
        raise UserError(advice)
    return run_launch(options, _given_fields(options), *split_settings(options.settings))


def _given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a job request that are set by options."""
    values = {name: getattr(options, name) for name in _FIELDS}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if value is not None
    }
