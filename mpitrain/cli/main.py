"""The command tree. Parsing needs neither torch nor mpi4py, so that `--help` answers at once, on a login node too."""

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
from mpitrain.cli.older_flags import advice_for_words, to_current_flags
from mpitrain.cli.settings import is_data, is_file, is_of_rank_0_alone
from mpitrain.cluster import read_place
from mpitrain.cluster.cpu.freed_memory import keep_freed_memory
from mpitrain.errors import LaunchError, MpitrainError, UserError, tell_caller
from mpitrain.version import __version__

Handler = Callable[[argparse.Namespace], int]
_LEAVE_A_FOLDER = ("train", "ensemble", "reproduce")
_ON_RANKS = (*_LEAVE_A_FOLDER, "predict", "data")
# In the order of the help: the module of each command in this folder, whose function add_NAME_command adds the command
# and its flags. Every rank loads that of the command asked for alone.
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
    """Run the command that `arguments` (default: the process's) name; return the exit code."""
    if arguments is not None:
        return _run(list(arguments))
    if read_place(os.environ).world_size == 1:  # of ranks, the launcher and the agents remove what is left
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # which lets the command remove its temporary files
    output = outlive_readers()
    code = _run(sys.argv[1:])
    # A scheduler sends this to all ranks once the first has left with a code other than 0, such as 5 after a stop: the
    # others are on their way out, and leave with their own code as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    if code == 0 and output.failure is not None and _with_command(sys.argv[1:])[0] not in _LEAVE_A_FOLDER:
        # A run's results are in its folder; the output of the other commands was to be here.
        reason = output.failure.strerror
        print(f"mpitrain: error: standard output: cannot be written ({reason})", file=sys.stderr)  # noqa: T201
        return UserError.exit_code
    return code


def _with_command(given: Sequence[str]) -> list[str]:
    """Return the arguments with the command first, wherever it is; `train` where none is named."""
    if not _means_train(given):
        return list(given)
    for number, (before, word) in enumerate(itertools.pairwise(given), start=1):
        # After a flag it may be the flag's value: --output train
        if word in COMMANDS and not (before.startswith("-") and "=" not in before):
            return [word, *given[:number], *given[number + 1 :]]
    return ["train", *given]


def _run(given: list[str]) -> int:
    # Looking for plugins reads a file of every installed package, on every rank; none of them is meant for us.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    options = _parse(_with_command(given))
    handler: Handler = options.handler
    if is_of_rank_0_alone(options):
        return 0
    keep_freed_memory(os.environ)
    # Imports make much that lives to the end; the collector would look through it all the time (a fifth of it).
    gc.disable()
    try:
        return handler(options)
    except MpitrainError as error:
        if not tell_caller(error):
            is_on_ranks = _with_command(given)[0] in _ON_RANKS and not getattr(options, "one_process", False)
            (_print_once if is_on_ranks else _print)(error)
        return error.exit_code
    finally:
        gc.enable()


def _print(error: MpitrainError) -> None:
    print(f"mpitrain: error: {error}", file=sys.stderr)  # noqa: T201


def _print_once(error: MpitrainError) -> None:
    """Print an error's line from one rank: before the ranks have met, all of them may have the same one."""
    from mpitrain.comm.agent.arrival import begin_watch, end_start

    # Where one rank alone has other words, the others are on their way to wait for it.
    end_start(begin_watch(), error, os.environ)


def _means_train(given: Sequence[str]) -> bool:
    """Return whether no command is named: then flags, settings or a file are those of `train`."""
    if not given:
        return True
    first = given[0]
    return (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first or is_file(first)


class _OneVoiceParser(argparse.ArgumentParser):
    """A parser that prints an error once, though all ranks have the same wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Print one line from one rank and leave with exit code 2."""
        self.leave(UserError(f"{message}; see {self.prog} --help"))

    def leave(self, error: MpitrainError) -> NoReturn:
        """Print an error's line from one rank and leave with its exit code."""
        _print_once(error)
        raise SystemExit(error.exit_code)


def _parse(given: list[str]) -> argparse.Namespace:
    parser = _build_parser(given)
    try:
        words = to_current_flags(given, _flags_of(parser, given))
        options, rest = parser.parse_known_args(words, argparse.Namespace(given=words))
    except UserError as error:
        parser.error(str(error))
    except LaunchError as error:
        parser.leave(error)
    # argparse takes positional words from one place only: settings and a file after a flag come back as unknown.
    takes_file = "settings" in options and not hasattr(options, "model")
    unknown = [
        word
        for word in rest
        if word.startswith("-")
        or "settings" not in options
        or ("=" not in word and not (takes_file and (is_file(word) or is_data(word))))
    ]
    if unknown:
        advice = advice_for_words(given[0], unknown, "settings" in options, takes_file)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice and '; '}{advice}")
    if rest:
        options.settings += rest
    return options


def _flags_of(parser: argparse.ArgumentParser, given: Sequence[str]) -> set[str]:
    """Return the flags of the command that the words name."""
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    command = commands.choices.get(given[0]) if given else None
    return set() if command is None else set(command._option_string_actions)


def _build_parser(given: Sequence[str] = ()) -> _OneVoiceParser:
    """Return the parser of the command that the words name; of all commands where they name none."""
    parser = _OneVoiceParser(
        prog="mpitrain",
        description="Train networks on scientific data under MPI: mpirun -np 8 python -m mpitrain",
        epilog="`mpitrain help` lists the topics that it explains. Exit codes: 0 done, 2 wrong input, 3 wrong launch, "
        "4 training failed, 5 stopped with a checkpoint, 1 our bug.",
    )
    parser.add_argument("--version", action="version", version=f"mpitrain {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_commands(commands, given)
    return parser


def add_commands(commands: Any, given: Sequence[str]) -> None:
    """Add to argparse's subparsers the command that the words `given` begin with; all commands where they name none."""
    is_of_one = bool(given) and given[0] in COMMANDS and given[0] != "help"  # which names the others
    for name in given[:1] if is_of_one else COMMANDS:
        module = importlib.import_module(f"mpitrain.cli.{COMMANDS[name]}")
        getattr(module, f"add_{name}_command")(commands)
