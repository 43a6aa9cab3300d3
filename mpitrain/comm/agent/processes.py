"""The processes of the ranks: their identity, whether they have ended, and how to end them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
from pathlib import Path

from mpitrain.errors import LaunchError

END_SIGNAL = signal.Signals(LaunchError.exit_code)
"""Its handler is the C library's _exit, which receives the signal's number and so exits with that code."""

# An emulator shows its program a start time slightly later than the one that other processes see.
_SAME_WITHIN_S = 2.0
_LONGEST_POLL_S = 0.2
# PF_EXITING, PF_DUMPCORE and PF_SIGNALED of Linux's include/linux/sched.h, in the flags of /proc/PID/stat.
_EXITING = 0x4 | 0x200 | 0x400


def let_end_signal_exit() -> None:
    """Let END_SIGNAL end this process with LaunchError's exit code, even while a C call holds the GIL."""
    # Installed by the C library: a Python handler would wait for the GIL, which a blocked MPI call may hold.
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(int(END_SIGNAL), ctypes.cast(library._exit, ctypes.c_void_p))


def process_born(pid: int) -> str:
    """Return the start time of a process in clock ticks; it differs from that of a later process with the same pid.

    Empty if the process does not exist or has ended.
    """
    fields = process_stat(pid)
    return "" if fields[0] in "?ZX" else fields[19]


def has_ended(pid: int, born: str) -> bool:
    """Return whether the process that started at `born` has ended, even if another process has its pid now."""
    now = process_born(pid)
    if not (now.isdigit() and born.isdigit()):
        return now != born
    return abs(int(now) - int(born)) > _SAME_WITHIN_S * os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """Return why a process cannot run, for a message: "stopped", "waits for a disk" or "gone"; otherwise empty."""
    return {"T": "stopped", "t": "stopped", "D": "waits for a disk"}.get(
        process_stat(pid)[0], "" if process_born(pid) else "gone"
    )


def is_ending(pid: int) -> bool:
    """Return whether an existing process is about to end: it is exiting, or a SIGKILL is pending.

    On a busy host this may take a second: the process's connections close before its end becomes visible.
    """
    flags = process_stat(pid)[6:7]
    if flags and int(flags[0]) & _EXITING:
        return True
    pending = re.findall(rb"(?m)^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", read_of_process(pid, "status"))
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)


def process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, ...; "?" and "0" if there is no process."""
    # The name is in parentheses and may contain any character, also parentheses.
    return read_of_process(pid, "stat").decode(errors="replace").rpartition(")")[2].split() or ["?", "0"]


def read_of_process(pid: int, name: str) -> bytes:
    """Return the content of a file in /proc/PID; empty if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class RankProcess:
    """A rank's process, not a child of this one. Its end is detected by a pidfd if possible, otherwise by polling."""

    def __init__(self, pid: int, born: str) -> None:
        self._pid, self._born = pid, born
        try:
            self.descriptor: int | None = os.pidfd_open(pid)
        except (OSError, AttributeError):  # the process has ended, or Linux before 5.3
            self.descriptor = None

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        if self.descriptor is not None and select.select([self.descriptor], [], [], 0)[0]:
            return True
        return has_ended(self._pid, self._born)

    def is_ending(self) -> bool:
        """Return whether the process is about to end."""
        return is_ending(self._pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, number)
            elif not self.has_ended():
                os.kill(self._pid, number)

    def close(self) -> None:
        """Close the pidfd."""
        if self.descriptor is not None:
            os.close(self.descriptor)


def sleep_until_an_end(processes: list[RankProcess], limit_s: float) -> None:
    """Return when one of the processes ends or `limit_s` has passed; earlier if some must be polled."""
    descriptors = [process.descriptor for process in processes if process.descriptor is not None]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(1000 * (limit_s if len(descriptors) == len(processes) else min(limit_s, _LONGEST_POLL_S)))
