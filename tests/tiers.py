"""The three tiers of the tests: which runs by default, and which programs a test of a tier may start.

* `fast`: the test starts no program but a compiler; threads play the ranks. A bare `pytest` runs this tier.
* `ranks`: the test starts ranks of one MPI, or commands. It needs only what training needs.
* `machine`: the test needs more: a second MPI, Slurm, an emulator, other compilers, trackers, or much time.

A test file states its tier in one line, `pytestmark = pytest.mark.fast`; a class, a function or a case of a parameter
may state another one, and the nearest counts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TIERS = ("fast", "ranks", "machine")
# A compiler, what tells it where a library is, and what Python's own libraries ask about the system.
COMPILER = re.compile(r"(c\+\+|cc|g\+\+|gcc|clang\+\+|clang|pkg-config|uname|ldconfig)(-\d+)?")
# Programs that `bash tests/run.sh` without arguments does not install.
OF_THE_MACHINE_TIER = re.compile(r"qemu-.*|aarch64-linux-gnu-.*|spin|strace|smpirun|smpicxx|slurm.*|munged")
_STARTING_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
# The tier of the test that runs, and what it was refused.
_RUNNING: list[tuple[str, list[str]]] = []


def mark_tiers(items: Iterable[pytest.Item]) -> None:
    """Leave each test with the mark of its own tier alone, so that `-m fast` selects by the nearest mark.

    Raises pytest.UsageError naming the files whose tests state no tier, or two at one place.
    """
    items = list(items)
    found = {item: _nearest_tiers(item) for item in items}
    _refuse_unmarked(found)
    for item in items:
        for node in item.listchain():
            node.own_markers = [mark for mark in node.own_markers if mark.name not in TIERS]
    for item, tiers in found.items():
        item.add_marker(tiers[0])


def _nearest_tiers(item: pytest.Item) -> list[str]:
    """The tiers that are stated at the place nearest to the test: its parameters, the function, the class, the file."""
    parameters = list(getattr(getattr(item, "callspec", None), "marks", ()))
    function = [mark for mark in item.own_markers if mark not in parameters]
    places = [parameters, function, *(node.own_markers for node in reversed(item.listchain()[:-1]))]
    stated = ([mark.name for mark in place if mark.name in TIERS] for place in places)
    return next((tiers for tiers in stated if tiers), [])


def _refuse_unmarked(found: dict[pytest.Item, list[str]]) -> None:
    unmarked = sorted({str(item.path) for item, tiers in found.items() if not tiers})
    twice = sorted({item.nodeid for item, tiers in found.items() if len(tiers) > 1})
    advice = "no tier; write `pytestmark = pytest.mark.fast` below its imports"
    lines = [f"{os.path.relpath(path)}: {advice}" for path in unmarked]
    lines += [f"{test}: two tiers at one place; leave one" for test in twice]
    if unmarked:
        lines.append("fast: starts no program but a compiler; ranks: real ranks or commands; machine: anything more")
    if lines:
        raise pytest.UsageError(*lines)


def default_expression(config: pytest.Config) -> str:
    """What `-m` is where nobody states it: a file that is named runs whole, anything else runs its fast tests."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS and config.args
    return "" if named and all(argument.split("::")[0].endswith(".py") for argument in config.args) else "fast"


def tier_of(item: pytest.Item) -> str:
    return next(mark.name for mark in item.own_markers if mark.name in TIERS)


@contextmanager
def only_programs_of(tier: str) -> Iterator[None]:
    """While a test of `tier` runs, fail it as soon as it starts a program that its tier must do without."""
    refused: list[str] = []
    _RUNNING.append((tier, refused))
    try:
        yield
    finally:
        _RUNNING.pop()
    # A thread, or an `except` of the program, may have held the failure back.
    if refused:
        pytest.fail(refused[0], pytrace=False)


def judges_time() -> bool:
    """Tell whether the test that runs may judge how long something took: those of the tier `machine` alone."""
    return not _RUNNING or _RUNNING[-1][0] == "machine"


def refusal(tier: str, event: str, program: str) -> str | None:
    """Why a test of `tier` may not start `program`; None: it may."""
    if tier == "fast" and not (event == "subprocess.Popen" and COMPILER.fullmatch(program)):
        return f"a fast test starts {program or event}: mark it `ranks` or `machine`, or test it in process"
    if tier == "ranks" and OF_THE_MACHINE_TIER.fullmatch(program):
        return f"a test of the tier `ranks` starts {program}: mark it `machine`"
    return None


def _watch_starts(event: str, arguments: tuple[Any, ...]) -> None:
    if not _RUNNING or event not in _STARTING_EVENTS:
        return
    tier, refused = _RUNNING[-1]
    program = Path(os.fsdecode(arguments[0])).name if event == "subprocess.Popen" else ""
    reason = refusal(tier, event, program)
    if reason is not None:
        refused.append(reason)
        pytest.fail(reason)


sys.addaudithook(_watch_starts)
