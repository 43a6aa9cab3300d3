"""Running of a command in another process: its output is shown, an interrupt stops it, its errors are raised here.

A separate process keeps MPI and signal handlers out of the caller's interpreter: an MPI library may end its process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpitrain.cluster import OVERSUBSCRIBED_VARIABLES, finding_package, run_module
from mpitrain.cluster.launchers import without_rank
from mpitrain.errors import (
    ERROR_FILE,
    LaunchError,
    MpitrainError,
    StoppedError,
    TrainingError,
    UserError,
    read_error,
    shown_on,
)
from mpitrain.python.handover import is_rank
from mpitrain.python.left_behind import LeftBehind

_ERROR = "mpitrain: error: "
_BY_EXIT_CODE = {kind.exit_code: kind for kind in (UserError, LaunchError, TrainingError, StoppedError)}


def run_command(
    command: str, arguments: Sequence[str], left: LeftBehind, ranks: int | None = None, quiet: bool = False
) -> None:  # fmt: skip
    """Run `mpitrain COMMAND ARGUMENTS` to its end, in one process or under mpirun with `ranks` ranks on this machine.

    If this process is one of several ranks of a launcher, this is collective: the ranks run the command together.
    Folders and processes to clean up if this process is killed are registered with `left`.

    Raises the error that ended the command, or KeyboardInterrupt after the command has stopped on an interrupt.
    """
    with advice_for_python():
        _run_here_or_there(command, arguments, left, ranks, quiet)


@contextmanager
def advice_for_python() -> Iterator[None]:
    """Replace command-line options in the advice of errors of the block by the arguments of the Python functions."""
    try:
        yield
    except UserError as error:
        text = str(error).replace("give --trust-code", "give trust_code=True")
        if text == str(error):
            raise
        raise type(error)(*text.split("\n")) from None


def _run_here_or_there(
    command: str, arguments: Sequence[str], left: LeftBehind, ranks: int | None, quiet: bool
) -> None:  # fmt: skip
    if is_rank():
        from mpitrain.python.together import run_together

        if ranks is not None:
            raise UserError(f"ranks={ranks}: this process is a rank of a launcher already; leave the argument out")
        run_together([command, *arguments])
        return
    with tempfile.TemporaryDirectory(prefix="mpitrain-") as folder:
        left.folder(Path(folder))
        error_file = Path(folder) / "error.json"
        command_line = [*_launcher(ranks), *run_module("mpitrain"), command, *arguments]
        # Without the variables of a rank; variables that MPI has set in this process are not in os.environ.
        own = finding_package(without_rank(os.environ))
        environ = {**OVERSUBSCRIBED_VARIABLES, **own, ERROR_FILE: str(error_file)}
        _raise_error(*_run(command_line, environ, left, quiet), error_file)


def _launcher(ranks: int | None) -> list[str]:
    if ranks is None:
        return []
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise UserError(f"ranks={ranks!r}: give a whole number from 1 on, or None for one process without mpirun")
    from mpitrain.native.toolchain import find_mpirun

    return [find_mpirun(), "-np", str(ranks)]


def _run(
    command_line: Sequence[str], environ: Mapping[str, str], left: LeftBehind, quiet: bool
) -> tuple[int, str, bool]:
    """Run the command to its end; return the exit code, the last error message, and whether it was interrupted."""
    child = subprocess.Popen(
        command_line, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,  # an interrupt from the terminal reaches only this process
    )  # fmt: skip
    assert child.stdout is not None
    left.group(child.pid)
    message, interrupted = "", False
    while True:
        try:
            message = _follow(child, quiet) or message
            code = child.wait()
            left.group(None)
            child.stdout.close()
            return code, message, interrupted
        except BaseException as error:
            if interrupted or not isinstance(error, KeyboardInterrupt):
                os.killpg(child.pid, signal.SIGKILL)  # second interrupt: do not wait for the checkpoint
                child.wait()
                left.group(None)
                raise
            interrupted = True
            child.send_signal(signal.SIGUSR1)  # MPICH's and Open MPI's mpirun forward it


def _follow(child: subprocess.Popen[str], quiet: bool) -> str:
    """Show the output of the command to its end; return the last error message, which is not shown."""
    message = ""
    assert child.stdout is not None
    for text in child.stdout:
        if text.startswith(_ERROR):
            message = text.removeprefix(_ERROR).rstrip("\n")
        elif not quiet:
            sys.stdout.write(shown_on(sys.stdout, text))
            sys.stdout.flush()
    return message


def _raise_error(exit_code: int, message: str, interrupted: bool, error_file: Path) -> None:
    if exit_code == 0:
        return
    kind = _BY_EXIT_CODE.get(exit_code, MpitrainError)
    error = read_error(error_file) or kind(message or f"the command ended with exit code {exit_code}")
    if interrupted:
        raise KeyboardInterrupt(str(error) if isinstance(error, StoppedError) else "interrupted before the first step")
    raise error
