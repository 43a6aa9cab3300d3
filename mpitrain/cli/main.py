"""The command tree. Parsing needs neither torch nor mpi4py, so that `--help` answers at once, on a login node too."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from mpitrain import __version__
from mpitrain.cli.bench import add_bench_command
from mpitrain.cli.data import add_data_command
from mpitrain.cli.predict import add_export_command, add_predict_command, add_report_command
from mpitrain.cluster.print_once import say_once_before_ranks_meet
from mpitrain.errors import MpitrainError, UserError

Handler = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[_OneVoiceParser]"

_FLAGS = {
    "epochs": ("training.epochs", "N", "number of passes over the training samples"),
    "batch_size": ("training.batch_size", "N", "samples per rank and step (global: training.global_batch_size=N)"),
    "lr": ("training.optimizer.learning_rate", "X", "learning rate at the start"),
    "data": (
        "data.data_path",
        "FILE",
        "CICE history file (.nc) or arrays (.npz); without it, a synthetic one is written",
    ),
    "output": ("output.model_dir", "FOLDER", "run folder (default: mpitrain_run)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the process's) name; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Training is what the package is for: no command, or flags alone, means `train`.
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help", "--version")) or "=" in given[0]:
        given.insert(0, "train")
    options = _parse(given)
    handler: Handler = options.handler
    # Imports make much that lives to the end; the collector would look through it all the time (a fifth of it).
    gc.disable()
    try:
        return handler(options)
    except MpitrainError as error:
        print(f"mpitrain: error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    finally:
        gc.enable()


class _OneVoiceParser(argparse.ArgumentParser):
    """A parser whose complaint appears once, however many ranks have the same wrong words."""

    def error(self, message: str) -> NoReturn:
        """Print one line from one rank and leave with exit code 2."""
        say_once_before_ranks_meet(f"mpitrain: error: {message}; see {self.prog} --help", os.environ)
        raise SystemExit(UserError.exit_code)


def _parse(given: list[str]) -> argparse.Namespace:
    parser = _build_parser()
    options, rest = parser.parse_known_args(given)
    # argparse takes positional words from one place only: settings behind a flag come back as unknown.
    unknown = [word for word in rest if word.startswith("-") or "=" not in word or "settings" not in options]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        options.settings += rest
    return options


def _build_parser() -> argparse.ArgumentParser:
    parser = _OneVoiceParser(
        prog="mpitrain",
        description="Train networks on scientific data under MPI: mpirun -np 8 python -m mpitrain",
        epilog="Exit codes: 0 done, 2 wrong input, 3 wrong launch, 4 training failed, 5 stopped with a "
        "checkpoint, 1 our bug.",
    )
    parser.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_config(commands)
    add_data_command(commands)
    _add_verify(commands)
    _add_doctor(commands)
    _add_launch(commands)
    add_predict_command(commands)
    add_export_command(commands)
    add_report_command(commands)
    add_bench_command(commands)
    return parser


def _add_train(commands: Commands) -> None:
    train = commands.add_parser(
        "train", help="train a network (the default command)", description="Train a network on all ranks."
    )
    _add_config_arguments(train)
    for name, (key, metavar, text) in _FLAGS.items():
        train.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=f"{text}; the same as {key}={metavar}")
    train.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much the ranks' logs hold (default: info)",
    )
    existing = train.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="continue the run in the run folder from its newest checkpoint"
    )
    existing.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    train.set_defaults(handler=_run_train)


def _add_config(commands: Commands) -> None:
    config = commands.add_parser("config", help="show, check or document settings", description="Settings of a run.")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text, handler in (
        ("show", "print every setting with its value", _run_config_show),
        ("check", "say whether the settings are valid", _run_config_check),
    ):
        action = actions.add_parser(name, help=text, description=text)
        _add_config_arguments(action)
        action.set_defaults(handler=handler)
    schema = actions.add_parser(
        "schema", help="print the JSON schema of all settings", description="Print the JSON schema."
    )
    schema.set_defaults(handler=_run_config_schema)


def _add_verify(commands: Commands) -> None:
    verify = commands.add_parser(
        "verify",
        help="prove that Python and the C++ program compute the same",
        description="Run both programs and compare every number, from the selected samples to the "
        "Jacobian. Exit code 0: all claims hold.",
    )
    _add_config_arguments(verify)
    verify.add_argument(
        "--config", metavar="FILE.yaml", help="verify your own run on your own data (the same as FILE.yaml)"
    )
    verify.add_argument(
        "--ranks", metavar="LIST", default="1,2,3,4", help="numbers of ranks, comma-separated (default: 1,2,3,4)"
    )
    verify.add_argument(
        "--output",
        metavar="FOLDER",
        default="mpitrain_verify",
        help="folder of report and traces (default: mpitrain_verify)",
    )
    verify.add_argument(
        "--faults", action="store_true", help="also plant mistakes in Python's side and show that each is caught"
    )
    verify.set_defaults(handler=_run_verify)


def _add_launch(commands: Commands) -> None:
    from mpitrain.launch.arguments import add_launch_arguments

    launch = commands.add_parser(
        "launch", help="write or send a job script", description="Write a job script, or send it with --submit."
    )
    _add_config_arguments(launch)
    add_launch_arguments(launch)
    launch.set_defaults(handler=_run_launch)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="find what is wrong with this environment or launch",
        description="Check the installation, the settings and the data; under mpirun or srun also the ranks, their "
        "network and their speed. Exit codes: 0 no failure, 2 wrong input, 3 wrong installation, launch or network.",
    )
    _add_config_arguments(doctor)
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="seconds that a step may take before the missing rank is named (default: 60)",
    )
    doctor.add_argument("--static", action="store_true", help="only what needs neither MPI nor other ranks")
    doctor.set_defaults(handler=_run_doctor)


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings", nargs="*", metavar="FILE.yaml | key.path=value", help="a YAML file first, then single settings"
    )


def _split_settings(settings: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the YAML file, if the first word is one, and the overrides."""
    if settings and "=" not in settings[0]:
        return Path(settings[0]), list(settings[1:])
    return None, list(settings)


def _run_train(options: argparse.Namespace) -> int:
    from mpitrain.comm.world import run_on_all_ranks
    from mpitrain.runs.beginning import TrainRequest
    from mpitrain.runs.train_run import train

    path, overrides = _split_settings(options.settings)
    overrides += [
        f"{key}={getattr(options, name)}" for name, (key, _, _) in _FLAGS.items() if getattr(options, name) is not None
    ]
    request = TrainRequest(path, tuple(overrides), options.resume, options.overwrite, options.log_level)
    return run_on_all_ranks(lambda world: train(world, request))


def _run_launch(options: argparse.Namespace) -> int:
    from mpitrain.cli.launch import run_launch

    return run_launch(options, *_split_settings(options.settings))


def _run_verify(options: argparse.Namespace) -> int:
    from mpitrain.verify.report import render_table, write_reports
    from mpitrain.verify.verify import VerifyRequest, verify

    path, overrides = _split_settings(options.settings)
    request = VerifyRequest(
        Path(options.output),
        _parse_ranks(options.ranks),
        Path(options.config) if options.config else path,
        tuple(overrides),
        options.faults,
    )
    verification = verify(request, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    _, page = write_reports(verification, request.output)
    sys.stdout.write(f"{render_table(verification)}\nreport: {page}\n")
    return 0 if verification.passed else 1


def _run_doctor(options: argparse.Namespace) -> int:
    from mpitrain.doctor.request import DoctorRequest
    from mpitrain.doctor.run import run_doctor

    path, overrides = _split_settings(options.settings)
    return run_doctor(DoctorRequest(path, tuple(overrides), options.json, options.timeout, options.static))


def _parse_ranks(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--ranks {text}: give numbers of ranks such as 1,2,4")
    return tuple(int(word) for word in words)


def _run_config_show(options: argparse.Namespace) -> int:
    from mpitrain.config import load_run_config, render_yaml

    loaded = load_run_config(*_split_settings(options.settings))
    sys.stdout.write(render_yaml(loaded.config))
    return _print_notices(loaded.notices)


def _run_config_check(options: argparse.Namespace) -> int:
    from mpitrain.config import load_run_config

    path, overrides = _split_settings(options.settings)
    loaded = load_run_config(path, overrides)
    _print_notices(loaded.notices)
    sys.stdout.write(f"{path or 'settings'}: valid\n")
    return 0


def _run_config_schema(options: argparse.Namespace) -> int:
    from mpitrain.config import render_schema

    sys.stdout.write(render_schema())
    return 0


def _print_notices(notices: Sequence[str]) -> int:
    for line in notices:
        sys.stderr.write(f"note: {line}\n")
    return 0
