"""Cleanup after a killed process: a shell waits for its end, ends its child processes and removes its folders."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The shell reads from a pipe that is closed when the process ends in any way. SIGUSR1 requests a checkpoint; mpirun
# forwards it to the ranks. They have 20 s for it: many schedulers kill after 30 s.
_SCRIPT = """
trap '' HUP INT TERM
group=
while IFS= read -r line; do
    case $line in
        folder*) set -- "$@" "${line#folder}" ;;
        group*) group=${line#group} ;;
    esac
done
if [ -n "$group" ]; then
    kill -USR1 "$group"
    tries=200
    while [ "$tries" -gt 0 ] && kill -0 "-$group"; do sleep 0.1; tries=$((tries - 1)); done
    kill -KILL "-$group"
fi
rm -rf -- "$@"
"""


class LeftBehind:
    """Processes to end and folders to remove if this process is killed; the first one starts the shell."""

    def __init__(self) -> None:
        self.shell: subprocess.Popen[str] | None = None

    def folder(self, path: Path) -> None:
        """Register a folder to remove."""
        if "\n" not in str(path):  # the shell reads one entry per line
            self._send(f"folder{path}")

    def group(self, leader: int | None) -> None:
        """Register a process group to end before folders are removed; None: the group has ended."""
        self._send(f"group{leader or ''}")

    def _send(self, line: str) -> None:
        if self.shell is None:
            self.shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, text=True, errors="surrogateescape", bufsize=1, start_new_session=True,
            )  # fmt: skip
        assert self.shell.stdin is not None
        with suppress(OSError):  # the shell has been killed
            self.shell.stdin.write(f"{line}\n")


@contextmanager
def left_behind() -> Iterator[LeftBehind]:
    """Yield a `LeftBehind` for the block, which itself ends its processes and removes its folders unless killed."""
    left = LeftBehind()
    try:
        yield left
    finally:
        if left.shell is not None:
            with suppress(OSError):
                left.shell.communicate()
