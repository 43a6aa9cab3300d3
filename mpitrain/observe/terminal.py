"""Find the user's terminal from inside a rank, and write to it.

Under an MPI launcher a rank's stderr is a pipe to the launcher, and `/dev/tty` does not help: Hydra (MPICH, Intel MPI)
starts each rank in a separate session, where `/dev/tty` cannot be opened, and Open MPI keeps the ranks in a process
group that is never in the foreground. The launcher is therefore searched among the ancestors of the process: if **its**
stderr is a terminal and it runs in the foreground, that terminal is used. There is none if the launcher's stderr is a
file or a pipe (`2> file`, `2>&1 | tee`), or if the launcher runs on another host.
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
        """Whether the process is in the terminal's foreground process group now."""
        return self.process_group == self.foreground_group


class Terminal:
    """A file that writes to a terminal; writing never fails, blocks or stops the process.

    Text that cannot be written at once (the user pressed Ctrl-S) is dropped, as is all text after the terminal closed.
    """

    def __init__(self, descriptor: int, is_ours_now: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._is_ours_now = is_ours_now

    def may_write(self) -> bool:
        """Whether drawing is possible now: not while the job is in the background."""
        return self._descriptor >= 0 and self._is_ours_now() and not _would_stop_us(self._descriptor)

    def write(self, text: str) -> int:
        """Write as much of the text as the terminal accepts without blocking; return the length of the text."""
        if self._descriptor >= 0:
            try:
                os.write(self._descriptor, text.encode(errors="replace"))
            except BlockingIOError:
                pass
            except OSError:
                self.close()
        return len(text)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def isatty(self) -> bool:
        """Return True."""
        return True

    def columns(self) -> int:
        """Return the current width in characters."""
        try:
            return os.get_terminal_size(self._descriptor).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS

    def close(self) -> None:
        """Close the terminal; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def open_stream_terminal(stream: IO[str]) -> Terminal | None:
    """Open the terminal that `stream` writes to; return None if it is not a terminal."""
    try:
        if not stream.isatty():
            return None
        reopened = _reopen(f"/proc/self/fd/{stream.fileno()}")
        descriptor = os.dup(stream.fileno()) if reopened is None else reopened
    except (OSError, ValueError):  # ValueError: a closed stream, or one without a descriptor
        return None
    return Terminal(descriptor, lambda: _group_in_foreground(descriptor))


def open_launcher_terminal() -> Terminal | None:
    """Open the terminal on stderr of the MPI launcher that started this process; return None if there is none."""
    launcher_pid = find_launcher(os.getppid(), read_process_status)
    descriptor = _reopen(f"/proc/{launcher_pid}/fd/2") if launcher_pid else None
    if launcher_pid is None or descriptor is None:
        return None
    return Terminal(descriptor, lambda: _process_in_foreground(launcher_pid))


def find_launcher(pid: int, read_status: Callable[[int], ProcessStatus | None]) -> int | None:
    """Return the nearest of `pid` and its ancestors that is an MPI launcher; None if there is none.

    Only the nearest launcher counts: the terminal of the user's shell above it would ignore `mpirun 2> file`.
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
    """Return the status of a process on this host; None if it has ended or there is no `/proc`."""
    try:
        return parse_process_status(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None


def parse_process_status(text: str) -> ProcessStatus:
    """Parse the line of `/proc/PID/stat`: `pid (name) state ppid pgrp ranks tty_nr tpgid ...` (proc(5))."""
    before, _, after = text.rpartition(")")  # the name may contain spaces and brackets
    fields = after.split()
    return ProcessStatus(before.partition("(")[2], int(fields[1]), int(fields[2]), int(fields[5]))


def _reopen(path: str) -> int | None:
    """Open a terminal again, in non-blocking mode: this does not change the mode of other open descriptors."""
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
    except OSError:  # not the controlling terminal: the process cannot be in its background
        return True


def _would_stop_us(descriptor: int) -> bool:
    """Return whether a write would stop this process: `stty tostop` is set and it is in a background group.

    Open MPI's ranks are in a background group; the other ranks would wait for the stopped one.
    """
    import termios

    try:
        is_set = bool(termios.tcgetattr(descriptor)[3] & termios.TOSTOP)
        return is_set and os.tcgetpgrp(descriptor) != os.getpgrp()
    except (
        OSError,
        termios.error,
    ):  # tcgetpgrp fails if this is not the controlling terminal; then it cannot stop the process
        return False
