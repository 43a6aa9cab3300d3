"""How much memory a launch and all that it starts hold together, at most."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from mpitrain.comm.agent.processes import process_stat
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
    for one in (int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal()):
        children.setdefault(int(process_stat(one)[1]), []).append(one)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def pss_of(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 where it is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:")), 0)
