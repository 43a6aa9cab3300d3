"""Start of a job's ranks, restarts on the remaining hosts, and signals that are passed to the ranks.

The scheduler's warning before the time limit (USR1) reaches this process only. It is passed to the launcher, which
passes it to the ranks: they write a checkpoint and exit with code 5.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mpitrain.errors import LaunchError, reason_of
from mpitrain.launch.inside.run_folder import RunFolder

LAUNCH_EXIT_CODE, STOPPED_EXIT_CODE, LAST_OWN_EXIT_CODE = 3, 5, 5


@dataclass(frozen=True)
class Again:
    """Texts about a restart for the log: the hosts that answer, and the ranks on them."""

    found: str = ""
    ranks: str = ""


@dataclass
class Ranks:
    """A launcher of ranks: `launcher` is its command, which the ranks' command follows."""

    launcher: list[str]
    environ: dict[str, str]
    log: Path | None = None
    """A file that receives a copy of their output; None if the launcher writes the logs."""
    warn_after_s: int = 0
    """Seconds after which to send the warning if the scheduler sends none; 0 for never."""
    passes_terminate: bool = False
    """Whether TERM reaches only this process, so that it must be passed to the launcher."""

    def start(self, command: Sequence[str], output: int | None) -> list[subprocess.Popen[bytes]]:
        """Start the launcher; `output` is the file descriptor for standard output and standard error."""
        return [start_process([*self.launcher, *command], self.environ, output)]

    def exit_code(self, code: int) -> int:
        """Return the run's exit code, given the launcher's."""
        return code

    def again(self) -> Again | None:
        """Set the next start to the remaining hosts; None if there are none."""
        return Again()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the job's hosts while the block runs."""
        yield

    def finish(self, code: int, is_warned: bool, folder: RunFolder | None) -> None:
        """After the last start: requeue the job, or print the command that resumes it."""


def start_process(
    command: Sequence[str], environ: Mapping[str, str], output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process; its standard output and standard error go to `output`, if given. Raises LaunchError."""
    errors = subprocess.STDOUT if output is not None else None
    try:
        return subprocess.Popen(command, env=environ, stdout=output, stderr=errors)
    except OSError as error:
        raise LaunchError(
            f"{command[0]}: cannot be started on {socket.gethostname()} ({reason_of(error)}); load its module"
        ) from None


@dataclass
class Attempts:
    """The first start of a job's ranks, and restarts on the remaining hosts."""

    ranks: Ranks
    folder: RunFolder | None
    restarts_left: int
    is_warned: bool = False
    is_cancelled: bool = False
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> int:
        """Run until the job has ended and return its exit code."""
        go_on = self.folder.resume_options() if self.folder else []
        if self.folder:
            self.folder.claim()
        with self._signals(), self.ranks.watched():
            code = self._run_once([*command, *go_on])
            while self._tries_again(code):
                again = self.ranks.again()
                if again is None or self._is_stopping or self.folder is None:
                    break
                self.restarts_left -= 1
                go_on = self.folder.resume_options()
                print(  # noqa: T201
                    f"the run ended with exit code {code}{again.found}: restarting with {' '.join(go_on)}{again.ranks} "
                    f"(restarts left: {self.restarts_left})", flush=True,
                )  # fmt: skip
                code = self._run_once([*command, *go_on])
            self.ranks.finish(code, self.is_warned, self.folder)
        return code

    @property
    def _is_stopping(self) -> bool:
        return self.is_warned or self.is_cancelled

    def _tries_again(self, code: int) -> bool:
        """Return whether a run that ended with `code` lost a host or a rank, so that a restart can help.

        Wrong input and failed training (1, 2, 4) and a stop on request (5) are final. Exit code 3 is final too, unless
        the run had begun: it then means that a rank stopped answering.
        """
        has_begun = self.folder is not None and self.folder.has_begun
        is_lost = code > LAST_OWN_EXIT_CODE or (code == LAUNCH_EXIT_CODE and has_begun)
        return is_lost and self.restarts_left > 0 and not self._is_stopping

    def _run_once(self, command: Sequence[str]) -> int:
        with _copied_to(self.ranks.log) as output:
            self._processes = self.ranks.start(command, output)
            codes = [process.wait() for process in self._processes]
        code = next((code for code in codes if code), 0)
        return self.ranks.exit_code(code if code >= 0 else 128 - code)  # 128 + signal number, as in a shell

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # TERM and INT reach the launcher without this process; a launcher that receives them twice kills its ranks.
        handlers = {
            signal.SIGUSR1: self._warn, signal.SIGALRM: self._warn,
            signal.SIGTERM: self._cancel, signal.SIGINT: self._cancel,
        }  # fmt: skip
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        signal.alarm(self.ranks.warn_after_s)
        try:
            yield
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _warn(self, _number: int, _frame: FrameType | None) -> None:
        self.is_warned = True
        self._send(signal.SIGUSR1)

    def _cancel(self, number: int, _frame: FrameType | None) -> None:
        self.is_cancelled = True
        if number == signal.SIGTERM and self.ranks.passes_terminate:
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(number)


@contextmanager
def _copied_to(log: Path | None) -> Iterator[int | None]:
    """Yield the descriptor of a pipe that is copied to standard output and to `log`; None without a log."""
    if log is None:
        yield None
        return
    # -i: Ctrl-C reaches every process of the terminal, but tee must still read the ranks' last lines.
    with subprocess.Popen(["tee", "-a", "-i", log], stdin=subprocess.PIPE) as tee:  # noqa: S607
        assert tee.stdin is not None
        yield tee.stdin.fileno()
