"""How much memory a launch and all that it starts hold together, at most."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from mpitrain.errors import MpitrainError

_PROC = Path("/proc")
_POLL_S = 0.05
_KIB = 1024


def peak_pss(command: Sequence[str]) -> int:
    """Run `command` and return the most bytes that it and its descendants held at a time.

    Memory that several share counts once (proportional set size, Linux). Raises MpitrainError where the command fails.
    """
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    peak = 0
    while running.poll() is None:
        peak = max(peak, sum(map(pss_of, descendants(running.pid))))
        time.sleep(_POLL_S)
    _, stderr = running.communicate()
    if running.returncode:
        raise MpitrainError(f"exit code {running.returncode} of `{' '.join(command)}`: {stderr.strip()[-300:]}")
    return peak


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes that it and they have started, as far as they live."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        parent = _parent_of(folder) if folder.name.isdecimal() else None
        if parent is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def _parent_of(folder: Path) -> int | None:
    try:
        # The name in brackets may hold anything.
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def pss_of(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 where it is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:")), 0)
