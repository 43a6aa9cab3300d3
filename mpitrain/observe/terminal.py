"""The terminal that a user looks at, found from inside a rank.

Under an MPI launcher a rank's stderr is a pipe to the launcher, and `/dev/tty` is no way out: Hydra (MPICH, Intel MPI)
puts every rank into a session of its own, where it cannot be opened, and Open MPI leaves the ranks in a process group
that is never the foreground one. So the launcher itself is looked up among the ancestors: where **its** stderr is a
terminal and it runs in the foreground, that terminal is written to. A launcher whose stderr goes to a file or into a
pipe (`2> file`, `2>&1 | tee`), or that runs on another host, gives none.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LAUNCHER_NAMES = ("mpirun", "mpiexec", "orterun", "prterun")
_DEFAULT_COLUMNS = 80


@dataclass(frozen=True)
class ProcessStatus:
    """Some fields of `/proc/PID/stat`; `foreground_group` is -1 for a process without a controlling terminal."""

    name: str
    parent_pid: int
    process_group: int
    foreground_group: int

    @property
    def in_foreground(self) -> bool:
        """Whether the shell shows this process to its user now."""
        return self.process_group == self.foreground_group


class Terminal:
    """A file that writes to a terminal and never fails, blocks or stops its process.

    What does not fit (the user pressed Ctrl-S) is dropped; once the terminal has gone, everything is.
    """

    def __init__(self, descriptor: int, is_ours_now: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._is_ours_now = is_ours_now

    def may_write(self) -> bool:
        """Whether drawing is welcome now: not while a shell has put the job into the background."""
        return self._descriptor >= 0 and self._is_ours_now() and not _would_stop_us(self._descriptor)

    def write(self, text: str) -> int:
        """Write what the terminal takes at once."""
        if self._descriptor >= 0:
            try:
                os.write(self._descriptor, text.encode(errors="replace"))
            except BlockingIOError:
                pass
            except OSError:
                self.close()
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """Say that this is a terminal."""
        return True

    def columns(self) -> int:
        """Width in characters, as it is now."""
        try:
            return os.get_terminal_size(self._descriptor).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS

    def close(self) -> None:
        """Let the terminal go; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def open_stream_terminal(stream: IO[str]) -> Terminal | None:
    """Open the terminal that `stream` itself writes to; None where it goes elsewhere."""
    try:
        if not stream.isatty():
            return None
        reopened = _reopen(f"/proc/self/fd/{stream.fileno()}")
        descriptor = os.dup(stream.fileno()) if reopened is None else reopened
    except (OSError, ValueError):  # ValueError: a closed stream, or one without a descriptor
        return None
    return Terminal(descriptor, lambda: _group_in_foreground(descriptor))


def open_launcher_terminal() -> Terminal | None:
    """Open the terminal of the stderr of the MPI launcher that started this process; None where there is none."""
    launcher_pid = find_launcher(os.getppid(), read_process_status)
    descriptor = _reopen(f"/proc/{launcher_pid}/fd/2") if launcher_pid else None
    if launcher_pid is None or descriptor is None:
        return None
    return Terminal(descriptor, lambda: _process_in_foreground(launcher_pid))


def find_launcher(pid: int, read_status: Callable[[int], ProcessStatus | None]) -> int | None:
    """Find the nearest of `pid` and its ancestors that is an MPI launcher; None where there is none.

    The nearest one decides: beyond it stands the user's shell, whose terminal says nothing about `mpirun 2> file`.
    """
    while pid > 0:
        status = read_status(pid)
        if status is None:
            return None
        if status.name.startswith(LAUNCHER_NAMES):
            return pid
        pid = status.parent_pid
    return None


def read_process_status(pid: int) -> ProcessStatus | None:
    """Status of a process on this host, or None where it has ended or there is no `/proc`."""
    try:
        return parse_process_status(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None


def parse_process_status(text: str) -> ProcessStatus:
    """Read the line of `/proc/PID/stat`: `pid (name) state ppid pgrp ranks tty_nr tpgid ...` (proc(5))."""
    before, _, after = text.rpartition(")")  # a name may itself hold spaces and brackets
    fields = after.split()
    return ProcessStatus(before.partition("(")[2], int(fields[1]), int(fields[2]), int(fields[5]))


def _reopen(path: str) -> int | None:
    """Open a terminal anew, without blocking: the mode belongs to the opening, so nobody else's is changed."""
    try:
        if not stat.S_ISCHR(os.stat(path).st_mode):
            return None
        descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    if os.isatty(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _process_in_foreground(pid: int) -> bool:
    status = read_process_status(pid)
    return status is not None and status.in_foreground


def _group_in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not our controlling terminal: no shell could put us into the background of it
        return True


def _would_stop_us(descriptor: int) -> bool:
    """Whether `stty tostop` is set: a write from Open MPI's background group would stop this rank, and all wait."""
    import termios

    try:
        is_set = bool(termios.tcgetattr(descriptor)[3] & termios.TOSTOP)
        return is_set and os.tcgetpgrp(descriptor) != os.getpgrp()
    except (
        OSError,
        termios.error,
    ):  # tcgetpgrp fails where the terminal is not our controlling one, which cannot stop us
        return False
