"""Commands in this process, which is one of several ranks of a launcher. All functions are collective."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mpitrain.durable_files import TEMPORARY_PREFIX
from mpitrain.errors import MpitrainError, keeping_errors

if TYPE_CHECKING:
    from mpitrain.comm import Ranks
    from mpitrain.python.left_behind import LeftBehind

Result = TypeVar("Result")


def run_together(arguments: Sequence[str]) -> None:
    """Run the command with these `arguments` on all ranks. Collective: the arguments must be equal on all ranks.

    An error that all ranks agree on is raised on all of them; any other error on one rank ends the job.
    """
    from mpitrain.cli.main import main

    _raising(lambda: main(arguments))


@contextmanager
def shared_folder(
    place: Callable[[], Path], beside: Path, left: LeftBehind, fill: Callable[[Path], None], is_read_everywhere: bool
) -> Iterator[Path]:
    """Yield a folder in `place()` that one rank of each node has filled; remove it after the block. Collective.

    If ranks of several nodes read it, or if there is no room in memory, the folder is created next to the run folder
    `beside`, which all nodes share, and is filled by the root only.
    """
    folder, is_owner = _on_ranks(lambda ranks: _make_folder(ranks, place, beside, left, fill, is_read_everywhere))
    try:
        yield folder
        _on_ranks(lambda ranks: ranks.barrier())  # no rank reads any more
    finally:
        if is_owner:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folder(
    ranks: Ranks,
    place: Callable[[], Path],
    beside: Path,
    left: LeftBehind,
    fill: Callable[[Path], None],
    is_read_everywhere: bool,
) -> tuple[Path, bool]:
    outside = beside.resolve().parent
    places = ranks.gather_object(outside if is_read_everywhere and ranks.num_nodes > 1 else place())
    is_on_disk = outside in places
    folder: Path = ranks.on_root(
        lambda: (outside if is_on_disk else places[0]) / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    )
    is_owner = ranks.is_root if is_on_disk else ranks.local_rank == 0

    def make() -> None:
        if is_owner:
            folder.mkdir(mode=0o700)
            left.folder(folder)
            fill(folder)

    ranks.on_all_ranks(make)
    return folder, is_owner


def on_root(action: Callable[[], Result]) -> Result:
    """Call `action` on the root; return its result, or raise its exception, on all ranks. Collective."""
    return _on_ranks(lambda ranks: ranks.on_root(action))


def _on_ranks(body: Callable[[Ranks], Result]) -> Result:
    from mpitrain.comm import run_on_all_ranks

    found: list[Result] = []

    def keep(ranks: Ranks) -> int:
        found.append(body(ranks))
        return 0

    _raising(lambda: run_on_all_ranks(keep))
    return found[0]


def _raising(action: Callable[[], int]) -> None:
    with keeping_errors() as errors:
        code = action()
    if errors:
        raise errors[-1]
    if code:
        raise MpitrainError(f"the command ended with exit code {code}")
