"""Entry point of the command line. Parsing loads no torch and no mpi4py: `--help` is fast and works on login nodes."""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mpitrain.cli.lasting_output import outlive_readers
from mpitrain.cli.older_flags import advice_for_arguments, to_current_flags
from mpitrain.cli.settings import has_nothing_to_do, is_data, is_file
from mpitrain.cluster import read_place
from mpitrain.cluster.cpu.freed_memory import keep_freed_memory
from mpitrain.errors import LaunchError, MpitrainError, UserError, pass_to_caller
from mpitrain.version import __version__

Handler = Callable[[argparse.Namespace], int]
_LEAVE_A_FOLDER = ("train", "ensemble", "reproduce")
_ON_RANKS = (*_LEAVE_A_FOLDER, "predict", "data")
# Module of each command in this folder, in the order of the help. Its function add_NAME_command adds the command and
# its options. A rank loads only the module of the command that it runs.
COMMANDS = {
    "train": "train",
    "ensemble": "ensemble",
    "config": "config",
    "data": "data",
    "verify": "checks",
    "doctor": "checks",
    "launch": "launch",
    "predict": "predict",
    "export": "predict",
    "report": "predict",
    "reproduce": "train",
    "bench": "bench.command",
    "help": "help",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (default: those of the process) and return the exit code."""
    if arguments is not None:
        return _run(list(arguments))
    # With several ranks the launcher and the agents remove temporary files. A single process turns SIGTERM into
    # KeyboardInterrupt, so that the command removes its own.
    if read_place(os.environ).world_size == 1:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    output = outlive_readers()
    code = _run(sys.argv[1:])
    # A scheduler sends SIGTERM to all ranks once the first has exited with a code other than 0, such as 5 after a stop.
    # Ignored, so that ranks that are about to exit do so with their own exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    if code == 0 and output.failure is not None and _with_command(sys.argv[1:])[0] not in _LEAVE_A_FOLDER:
        # The results of a run are in its folder; the other commands write their results to standard output.
        reason = output.failure.strerror
        print(f"mpitrain: error: standard output: cannot be written ({reason})", file=sys.stderr)  # noqa: T201
        return UserError.exit_code
    return code


def _with_command(given: Sequence[str]) -> list[str]:
    """Return the arguments with the command moved to the front; without a command, `train` is inserted."""
    if not _means_train(given):
        return list(given)
    for number, (before, argument) in enumerate(itertools.pairwise(given), start=1):
        # After an option it may be the option's value: --output train
        if argument in COMMANDS and not (before.startswith("-") and "=" not in before):
            return [argument, *given[:number], *given[number + 1 :]]
    return ["train", *given]


def _run(given: list[str]) -> int:
    # To find plugins pydantic reads a file of every installed package, on every rank; mpitrain uses no plugin.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    options = _parse(_with_command(given))
    handler: Handler = options.handler
    if has_nothing_to_do(options):
        return 0
    keep_freed_memory(os.environ)
    # Imports create many objects that live until the end; searching them for garbage would take a fifth of the time.
    gc.disable()
    try:
        return handler(options)
    except MpitrainError as error:
        if not pass_to_caller(error):
            is_on_ranks = _with_command(given)[0] in _ON_RANKS and not getattr(options, "one_process", False)
            (_print_once if is_on_ranks else _print)(error)
        return error.exit_code
    finally:
        gc.enable()


def _print(error: MpitrainError) -> None:
    print(f"mpitrain: error: {error}", file=sys.stderr)  # noqa: T201


def _print_once(error: MpitrainError) -> None:
    """Print an error from one rank only: before MPI is initialised, all ranks may raise the same error."""
    from mpitrain.comm.agent.arrival import begin_watch, end_start

    # If only this rank has wrong arguments, the others will wait for it: `end_start` reports the error to the agent.
    end_start(begin_watch(), error, os.environ)


def _means_train(given: Sequence[str]) -> bool:
    """Return whether no command is given: options, settings and a file then belong to `train`."""
    if not given:
        return True
    first = given[0]
    return (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first or is_file(first)


class _ReportOnceParser(argparse.ArgumentParser):
    """Argument parser that prints an error once, although all ranks have the same wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Print one line from one rank and exit with code 2."""
        self.leave(UserError(f"{message}; see {self.prog} --help"))

    def leave(self, error: MpitrainError) -> NoReturn:
        """Print an error from one rank and exit with its exit code."""
        _print_once(error)
        raise SystemExit(error.exit_code)


def _parse(given: list[str]) -> argparse.Namespace:
    parser = _build_parser(given)
    try:
        current = to_current_flags(given, _flags_of(parser, given))
        options, rest = parser.parse_known_args(current, argparse.Namespace(given=current))
    except UserError as error:
        parser.error(str(error))
    except LaunchError as error:
        parser.leave(error)
    # argparse accepts positional arguments in one place only: settings and a file after an option are left in `rest`.
    takes_file = "settings" in options and not hasattr(options, "model")
    unknown = [
        argument
        for argument in rest
        if argument.startswith("-")
        or "settings" not in options
        or ("=" not in argument and not (takes_file and (is_file(argument) or is_data(argument))))
    ]
    if unknown:
        advice = advice_for_arguments(given[0], unknown, "settings" in options, takes_file)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice and '; '}{advice}")
    if rest:
        options.settings += rest
    return options


def _flags_of(parser: argparse.ArgumentParser, given: Sequence[str]) -> set[str]:
    """Return the options of the command in `given`; an empty set without a command."""
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    command = commands.choices.get(given[0]) if given else None
    return set() if command is None else set(command._option_string_actions)


def _build_parser(given: Sequence[str] = ()) -> _ReportOnceParser:
    """Return the parser of the command in `given`; without a command, the parser of all commands."""
    parser = _ReportOnceParser(
        prog="mpitrain",
        description="Train networks on scientific data under MPI: mpirun -np 8 python -m mpitrain",
        epilog="`mpitrain help` lists the help topics. Exit codes: 0 success, 1 a difference found by verify or "
        "reproduce, or a bug in mpitrain, 2 wrong input, 3 wrong launch, 4 training failed, 5 stopped with a "
        "checkpoint.",
    )
    parser.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_commands(commands, given)
    return parser


def add_commands(commands: Any, given: Sequence[str]) -> None:
    """Add the command that `given` begins with to argparse's subparsers; without a command, add all commands."""
    is_of_one = bool(given) and given[0] in COMMANDS and given[0] != "help"  # `help` needs the names of all commands
    for name in given[:1] if is_of_one else COMMANDS:
        module = importlib.import_module(f"mpitrain.cli.{COMMANDS[name]}")
        getattr(module, f"add_{name}_command")(commands)
