"""The command tree. Parsing needs neither torch nor mpi4py, so that `--help` answers at once, on a login node too."""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from mpitrain import __version__
from mpitrain.cli.bench.command import add_bench_command
from mpitrain.cli.checks import add_doctor_command, add_verify_command
from mpitrain.cli.data import add_data_command
from mpitrain.cli.ensemble import add_ensemble_command
from mpitrain.cli.lasting_output import outlive_readers
from mpitrain.cli.launch import add_launch_command
from mpitrain.cli.older_flags import to_current_flags
from mpitrain.cli.predict import add_export_command, add_predict_command, add_report_command
from mpitrain.cli.settings import is_file
from mpitrain.cli.train import add_config_command, add_reproduce_command, add_train_command
from mpitrain.cluster.cpu.freed_memory import keep_freed_memory
from mpitrain.errors import MpitrainError, UserError

Handler = Callable[[argparse.Namespace], int]
COMMANDS = (
    "train", "ensemble", "config", "data", "verify", "doctor", "launch", "predict", "export", "report", "reproduce",
    "bench",
)  # fmt: skip
_LEAVE_A_FOLDER = ("train", "ensemble", "reproduce")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the process's) name; return the exit code."""
    if arguments is not None:
        return _run(list(arguments))
    output = outlive_readers()
    code = _run(sys.argv[1:])
    # A scheduler sends this to all ranks once the first has left with a code other than 0, such as 5 after a stop: the
    # others are on their way out, and leave with their own code as well.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    if code == 0 and output.failure is not None and _with_command(sys.argv[1:])[0] not in _LEAVE_A_FOLDER:
        # What a run leaves is in its folder; what the other commands leave was to be here.
        reason = output.failure.strerror
        print(f"mpitrain: error: standard output: cannot be written ({reason})", file=sys.stderr)  # noqa: T201
        return UserError.exit_code
    return code


def _with_command(given: Sequence[str]) -> list[str]:
    """Return the words with the command first, wherever it stands; training where none is named."""
    if not _means_train(given):
        return list(given)
    for number, (before, word) in enumerate(itertools.pairwise(given), start=1):
        # After a flag it may be the flag's value: --output train
        if word in COMMANDS and not (before.startswith("-") and "=" not in before):
            return [word, *given[:number], *given[number + 1 :]]
    return ["train", *given]


def _run(given: list[str]) -> int:
    options = _parse(_with_command(given))
    handler: Handler = options.handler
    keep_freed_memory(os.environ)
    # Imports make much that lives to the end; the collector would look through it all the time (a fifth of it).
    gc.disable()
    try:
        return handler(options)
    except MpitrainError as error:
        print(f"mpitrain: error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    finally:
        gc.enable()


def _means_train(given: Sequence[str]) -> bool:
    """Tell whether no command is named: training is what the package is for, so flags, settings or a file mean it."""
    if not given:
        return True
    first = given[0]
    return (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first or is_file(first)


class _OneVoiceParser(argparse.ArgumentParser):
    """A parser whose complaint appears once, however many ranks have the same wrong words."""

    def error(self, message: str) -> NoReturn:
        """Print one line from one rank and leave with exit code 2."""
        from mpitrain.comm.supervision.node_watch import begin_watch, end_start

        # Where one rank alone has other words, the others are on their way to wait for it.
        end_start(begin_watch(), UserError(f"{message}; see {self.prog} --help"), os.environ)
        raise SystemExit(UserError.exit_code)


def _parse(given: list[str]) -> argparse.Namespace:
    parser = _build_parser()
    try:
        words = to_current_flags(given)
        options, rest = parser.parse_known_args(words, argparse.Namespace(given=words))
    except UserError as error:
        parser.error(str(error))
    # argparse takes positional words from one place only: settings and a file after a flag come back as unknown.
    takes_file = "settings" in options and not hasattr(options, "model")
    unknown = [
        word
        for word in rest
        if word.startswith("-") or "settings" not in options or ("=" not in word and not (takes_file and is_file(word)))
    ]
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
    add_train_command(commands)
    add_ensemble_command(commands)
    add_config_command(commands)
    add_data_command(commands)
    add_verify_command(commands)
    add_doctor_command(commands)
    add_launch_command(commands)
    add_predict_command(commands)
    add_export_command(commands)
    add_report_command(commands)
    add_reproduce_command(commands)
    add_bench_command(commands)
    return parser
