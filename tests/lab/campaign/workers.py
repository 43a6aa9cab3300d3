"""The schedules of a campaign, several at a time, each worker a fork of a process that has loaded everything."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

Outcome = TypeVar("Outcome")
_play: Callable[[int], object]


def play_in_workers(
    begin: Callable[[], Callable[[int], Outcome]], numbers: Sequence[int], at_once: int
) -> Iterator[tuple[int, Outcome]]:
    """Yield each number with its outcome, as they end; `begin` gives each worker what plays a number."""
    with multiprocessing.get_context("fork").Pool(at_once, _begin, (begin,)) as workers:
        yield from workers.imap_unordered(_play_one, numbers)


def _begin(begin: Callable[[], Callable[[int], object]]) -> None:
    global _play
    _play = begin()


def _play_one(number: int) -> tuple[int, object]:
    return number, _play(number)


def exit_code_of(process: int) -> int:
    """Wait for the end of a forked rank, and return its exit code."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    forget_shared_memory(process)
    return code


def forget_shared_memory(process: int) -> None:
    """Remove what MPICH leaves of a rank that was killed, or ended as forks do.

    It names its memory by the process: after thousands, a new process has the number of one of them, and cannot start.
    """
    Path(f"/dev/shm/mpich_shm_{process:x}_0").unlink(missing_ok=True)


class Done:
    """The numbers that have ended well, in a file: a campaign that is begun again goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.numbers = {int(line) for line in path.read_text().split()} if path.exists() else set()

    def add(self, number: int) -> None:
        """Note one more."""
        self.numbers.add(number)
        with self._path.open("a") as file:
            file.write(f"{number}\n")
