"""The command tree. Parsing needs neither torch nor mpi4py, so that `--help` answers at once, on a login node too."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mpitrain import __version__
from mpitrain.errors import MpitrainError

Handler = Callable[[argparse.Namespace], int]

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
    options = _build_parser().parse_args(given)
    handler: Handler = options.handler
    try:
        return handler(options)
    except MpitrainError as error:
        print(f"mpitrain: error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpitrain",
        description="Train networks on scientific data under MPI: mpirun -np 8 python -m mpitrain",
        epilog="Exit codes: 0 done, 2 wrong input, 3 wrong launch, 4 training failed, 5 stopped with a "
        "checkpoint, 1 our bug.",
    )
    parser.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_config(commands)
    return parser


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser(
        "train", help="train a network (the default command)", description="Train a network on all ranks."
    )
    _add_config_arguments(train)
    for name, (key, metavar, text) in _FLAGS.items():
        train.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=f"{text}; the same as {key}={metavar}")
    existing = train.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="continue the run in the run folder from its newest checkpoint"
    )
    existing.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    train.set_defaults(handler=_run_train)


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    from mpitrain.train.run import TrainRequest, train

    path, overrides = _split_settings(options.settings)
    overrides += [
        f"{key}={getattr(options, name)}" for name, (key, _, _) in _FLAGS.items() if getattr(options, name) is not None
    ]
    request = TrainRequest(path, tuple(overrides), options.resume, options.overwrite)
    return run_on_all_ranks(lambda world: train(world, request))


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
