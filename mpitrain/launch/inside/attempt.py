"""The ranks of a job, started as often as it takes: signals on their way to them, and starts on what is left.

The scheduler's warning before the time limit (USR1) reaches this process alone. It is passed to the launcher, which
hands it to the ranks: they write a checkpoint and leave with exit code 5.
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
    """What a new start has: words about the hosts, and about the ranks on them."""

    found: str = ""
    ranks: str = ""


@dataclass
class Ranks:
    """How a launcher starts the ranks: its own words, and then theirs."""

    words: list[str]
    environ: dict[str, str]
    log: Path | None = None
    """A file that gets a copy of their output; None where the launcher writes the logs."""
    warn_after_s: int = 0
    """When to send the warning where the scheduler sends none; 0 for never."""
    passes_terminate: bool = False
    """Whether TERM is for this process alone, and must be passed to the launcher."""

    def start(self, command: Sequence[str], output: int | None) -> list[subprocess.Popen[bytes]]:
        """Start the ranks' launcher; `output` is the descriptor that standard output and error go to."""
        return [start_process([*self.words, *command], self.environ, output)]

    def exit_code(self, code: int) -> int:
        """Return the run's exit code, from the launcher's."""
        return code

    def again(self) -> Again | None:
        """Make the next start use what is left; None where nothing is."""
        return Again()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep what watches over the job's hosts while the block runs."""
        yield

    def finish(self, code: int, is_warned: bool, folder: RunFolder | None) -> None:
        """After the last start: requeue the job, or say how to go on."""


def start_process(
    words: Sequence[str], environ: Mapping[str, str], output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process whose standard error goes where its output goes, if that is given. Raises LaunchError."""
    errors = subprocess.STDOUT if output is not None else None
    try:
        return subprocess.Popen(words, env=environ, stdout=output, stderr=errors)
    except OSError as error:
        raise LaunchError(
            f"{words[0]}: cannot be started on {socket.gethostname()} ({reason_of(error)}); load its module"
        ) from None


@dataclass
class Attempts:
    """The starts of a job's ranks, the first and those on what is left of its hosts."""

    ranks: Ranks
    folder: RunFolder | None
    restarts_left: int
    is_warned: bool = False
    is_cancelled: bool = False
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> int:
        """Run until the job is over and return its exit code."""
        go_on = self.folder.words_to_go_on() if self.folder else []
        if self.folder:
            self.folder.claim()
        with self._signals(), self.ranks.watched():
            code = self._run_once([*command, *go_on])
            while self._tries_again(code):
                again = self.ranks.again()
                if again is None or self._is_stopping or self.folder is None:
                    break
                self.restarts_left -= 1
                go_on = self.folder.words_to_go_on()
                print(  # noqa: T201
                    f"the run ended with exit code {code}{again.found}: again with {' '.join(go_on)}{again.ranks}, "
                    f"{self.restarts_left} times more at most", flush=True,
                )  # fmt: skip
                code = self._run_once([*command, *go_on])
            self.ranks.finish(code, self.is_warned, self.folder)
        return code

    @property
    def _is_stopping(self) -> bool:
        return self.is_warned or self.is_cancelled

    def _tries_again(self, code: int) -> bool:
        """Tell whether a run that ended with `code` lost a host or a rank, so that another start can help.

        Wrong input, a failed training (1, 2, 4) and a stop on request (5) stay. So does 3, unless the run had begun:
        then a rank did not answer any more.
        """
        has_begun = self.folder is not None and self.folder.has_begun
        is_lost = code > LAST_OWN_EXIT_CODE or (code == LAUNCH_EXIT_CODE and has_begun)
        return is_lost and self.restarts_left > 0 and not self._is_stopping

    def _run_once(self, command: Sequence[str]) -> int:
        with _copied_to(self.ranks.log) as output:
            self._processes = self.ranks.start(command, output)
            codes = [process.wait() for process in self._processes]
        code = next((code for code in codes if code), 0)
        return self.ranks.exit_code(code if code >= 0 else 128 - code)  # as a shell tells of a signal

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # TERM and INT reach a job's ranks by themselves: a launcher that is sent them a second time kills its ranks.
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
    """Yield the descriptor of a pipe whose text goes to standard output and to `log`; None without a log."""
    if log is None:
        yield None
        return
    # -i: Ctrl-C reaches every process of the terminal, and the ranks' last lines must still be read.
    with subprocess.Popen(["tee", "-a", "-i", log], stdin=subprocess.PIPE) as tee:  # noqa: S607
        assert tee.stdin is not None
        yield tee.stdin.fileno()
