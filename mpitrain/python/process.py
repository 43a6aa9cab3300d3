"""A command in another process: it is started, its lines are shown, an interrupt stops it, its errors are raised.

Another process keeps MPI and signal handlers out of the interpreter that calls: an MPI library may end its process.
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
    command: str, words: Sequence[str], left: LeftBehind, ranks: int | None = None, quiet: bool = False
) -> None:  # fmt: skip
    """Run `mpitrain COMMAND WORDS` in one process, or on `ranks` of this machine under mpirun, to its end.

    Where this process is one of several ranks of a launcher, they run the command together. Collective then.
    `left` learns what to remove and end where this process is killed.

    Raises the error that ended the command, or KeyboardInterrupt after the command has stopped on an interrupt.
    """
    with in_words_of_python():
        _run_here_or_there(command, words, left, ranks, quiet)


@contextmanager
def in_words_of_python() -> Iterator[None]:
    """Let errors of the block advise arguments, not flags."""
    try:
        yield
    except UserError as error:
        text = str(error).replace("give --trust-code", "give trust_code=True")
        if text == str(error):
            raise
        raise type(error)(*text.split("\n")) from None


def _run_here_or_there(
    command: str, words: Sequence[str], left: LeftBehind, ranks: int | None, quiet: bool
) -> None:  # fmt: skip
    if is_rank():
        from mpitrain.python.together import run_together

        if ranks is not None:
            raise UserError(f"ranks={ranks}: this process is a rank of a launcher already; leave the argument out")
        run_together([command, *words])
        return
    with tempfile.TemporaryDirectory(prefix="mpitrain-") as folder:
        left.folder(Path(folder))
        error_file = Path(folder) / "error.json"
        line = [*_launcher(ranks), *run_module("mpitrain"), command, *words]
        # Without the variables of a rank; what MPI itself has set in this process is not among them.
        own = finding_package(without_rank(os.environ))
        environ = {**OVERSUBSCRIBED_VARIABLES, **own, ERROR_FILE: str(error_file)}
        _raise_error(*_run(line, environ, left, quiet), error_file)


def _launcher(ranks: int | None) -> list[str]:
    if ranks is None:
        return []
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise UserError(f"ranks={ranks!r}: give a whole number from 1 on, or None for one process without mpirun")
    from mpitrain.native.toolchain import find_mpirun

    return [find_mpirun(), "-np", str(ranks)]


def _run(line: Sequence[str], environ: Mapping[str, str], left: LeftBehind, quiet: bool) -> tuple[int, str, bool]:
    """Run to the end; return the exit code, the last error line, and whether an interrupt came."""
    child = subprocess.Popen(
        line, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,  # an interrupt from the terminal reaches this process alone
    )  # fmt: skip
    assert child.stdout is not None
    left.group(child.pid)
    said, interrupted = "", False
    while True:
        try:
            said = _follow(child, quiet) or said
            code = child.wait()
            left.group(None)
            child.stdout.close()
            return code, said, interrupted
        except BaseException as error:
            if interrupted or not isinstance(error, KeyboardInterrupt):
                os.killpg(child.pid, signal.SIGKILL)  # a second one: the user will not wait for the checkpoint
                child.wait()
                left.group(None)
                raise
            interrupted = True
            child.send_signal(signal.SIGUSR1)  # mpirun passes it on, MPICH's and Open MPI's


def _follow(child: subprocess.Popen[str], quiet: bool) -> str:
    """Show the command's lines until they end; return the last error line, which is not shown."""
    said = ""
    assert child.stdout is not None
    for text in child.stdout:
        if text.startswith(_ERROR):
            said = text.removeprefix(_ERROR).rstrip("\n")
        elif not quiet:
            sys.stdout.write(shown_on(sys.stdout, text))
            sys.stdout.flush()
    return said


def _raise_error(exit_code: int, said: str, interrupted: bool, error_file: Path) -> None:
    if exit_code == 0:
        return
    kind = _BY_EXIT_CODE.get(exit_code, MpitrainError)
    error = read_error(error_file) or kind(said or f"the command ended with exit code {exit_code}")
    if interrupted:
        raise KeyboardInterrupt(str(error) if isinstance(error, StoppedError) else "interrupted before the first step")
    raise error
