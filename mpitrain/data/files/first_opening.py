"""A file is first opened in a process that may die: a damaged one can crash the library that reads it.

One process for all files of a node. It is a fresh interpreter, never a fork, and has none of a launcher's variables: a
fork after MPI's start breaks some networks, and MPI must not find another rank. It loads what reads files, no more.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from mpitrain.data.files.variable import FieldFile
from mpitrain.errors import DataError

# What launchers, MPI libraries and schedulers tell a rank; PALS is Cray's, PRTE Open MPI's, HYD Hydra's.
_OF_LAUNCHERS = ("MPI", "PMI", "OMPI", "PRTE", "OPAL", "I_MPI", "HYD", "MV2", "PALS", "SLURM", "FLUX", "PBS")
# One thread: the rank's own start needs the cores. HDF5 built with MPI loads mpi4py, but this process is no rank.
_OF_THE_PROCESS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MPI4PY_RC_INITIALIZE": "0",
}
_START = "import sys; sys.path[:] = {path!r}; from mpitrain.data.files.opening_process import serve; serve({parent})"
_MOST_UNANSWERED = 16  # all their answers fit into a pipe: neither side waits for the other to read

FileState = tuple[str, str, int, int]


class FirstOpening:
    """The process and what it has found. `expect` files, then `check` each before opening it here."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: deque[FileState] = deque()
        self._asked: deque[FileState] = deque()
        self._answers: dict[FileState, str] = {}
        self._is_possible = True

    def begin(self) -> None:
        """Start the process, so that it has loaded its libraries when it is needed.

        Where there can be none, files are opened in this one at once.
        """
        if self._process is not None or not self._is_possible:
            return
        started = threading.Event()
        # In a thread that waits for its end: the system kills the process with the thread that has started it, and it
        # must not stay a zombie for the days of a training. It ends by itself when nobody asks any more.
        threading.Thread(target=self._live, args=(started,), daemon=True).start()
        started.wait()

    def _live(self, started: threading.Event) -> None:
        code = _START.format(path=sys.path, parent=os.getpid())
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=without_launcher(os.environ) | _OF_THE_PROCESS,
            )  # fmt: skip
        except OSError:
            self._is_possible = False
            return
        finally:
            started.set()
        process.wait()

    def expect(self, paths: Sequence[Path]) -> None:
        """Let the process open these files, in this order, while the caller does other things."""
        known = {*self._answers, *self._waiting, *self._asked}
        self._waiting += [state for path in paths if (state := _state_of(path)) is not None and state not in known]
        if self._waiting:
            self.begin()
            self._ask()

    def check(self, path: Path) -> None:
        """Wait until the process has opened the file. Raises DataError where it could not, or died of it."""
        state = _state_of(path)
        if state is None:
            return
        self.expect([path])
        while state not in self._answers and self._process is not None:
            self._receive()
        problem = self._answers.get(state, "")
        if problem:
            raise DataError(problem)

    @contextmanager
    def opened(self, path: Path) -> Iterator[FieldFile]:
        """Check the file, and open it here for the block. Raises DataError."""
        from mpitrain.data.files.open import open_field_file

        self.check(path)
        with closing(open_field_file(path)) as file:
            yield file

    def trust(self, path: Path) -> None:
        """Take a file that this process has just written as it is."""
        state = _state_of(path)
        if state is not None:
            self._answers[state] = ""

    def end(self) -> None:
        """End the process; what it has found stays."""
        if self._process is not None:
            self._process.kill()
            self._forget_process()

    def _ask(self) -> None:
        while self._process is not None and self._waiting and len(self._asked) < _MOST_UNANSWERED:
            self._asked.append(self._waiting.popleft())
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(self._asked[-1][:2]).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:  # it has ended: the next answer says so
                return

    def _receive(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            self._answers[self._asked.popleft()] = json.loads(line)
            self._ask()
            return
        code = self._process.wait()
        self._forget_process()
        self._is_possible = code < 0  # else it has not even started
        if self._asked and code != -signal.SIGALRM:  # that is the end of an idle process
            guilty = self._asked.popleft()
            self._answers[guilty] = _death_notice(guilty[1], code) if self._is_possible else ""
        # The others are asked again.
        self._waiting.extendleft(reversed(self._asked))
        self._asked.clear()
        self.expect([])

    def _forget_process(self) -> None:
        if self._process is None:
            return
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # what was not yet sent to a dead process
                pass
        self._process = None


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those by which an MPI library would take the process for a rank."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_LAUNCHERS)}


def _state_of(path: Path) -> FileState | None:
    """Return the working folder, the path and what tells a file from a changed one.

    None where it is missing, or read without a library in C.
    """
    from mpitrain.data.files.open import needs_library

    try:
        if not path.is_file() or not needs_library(path):
            return None
        folder, status = str(Path.cwd()), path.stat()
    except (OSError, DataError):
        return None  # which opening it reports
    return folder, str(path), status.st_size, status.st_mtime_ns


def _death_notice(path: str, code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"{path}: damaged: its library does not come to an end reading it; write or copy the file again"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"
    return f"{path}: damaged: its library dies of it ({name}); write or copy the file again"


FIRST_OPENING = FirstOpening()
atexit.register(FIRST_OPENING.end)
