"""What a killed process leaves behind is ended and removed by a shell, which waits for that process's end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# It reads from a pipe that closes with the process, however that ends. The signal asks for a checkpoint, also of the
# ranks of an mpirun, which passes it on; they get 20 s for it: many schedulers kill after 30 s.
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
    """What is to be ended and removed should this process be killed; the shell is started with the first of it."""

    def __init__(self) -> None:
        self.shell: subprocess.Popen[str] | None = None

    def folder(self, path: Path) -> None:
        """Have a folder removed."""
        if "\n" not in str(path):  # a line each
            self._say(f"folder{path}")

    def group(self, leader: int | None) -> None:
        """Have a group of processes ended before that; None: it has ended."""
        self._say(f"group{leader or ''}")

    def _say(self, line: str) -> None:
        if self.shell is None:
            self.shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, text=True, errors="surrogateescape", bufsize=1, start_new_session=True,
            )  # fmt: skip
        assert self.shell.stdin is not None
        with suppress(OSError):  # somebody has killed the shell
            self.shell.stdin.write(f"{line}\n")


@contextmanager
def left_behind() -> Iterator[LeftBehind]:
    """Yield what knows of folders and processes of the block, which has removed and ended them where it ends itself."""
    left = LeftBehind()
    try:
        yield left
    finally:
        if left.shell is not None:
            with suppress(OSError):
                left.shell.communicate()
