"""Dynamic distribution of work: counters and short texts that all ranks share, without collectives.

They live in a store in rank 0's process, which a thread in C++ serves: unlike one-sided MPI over a network it answers
also while rank 0 computes, and unlike files it needs no file system that all nodes see at the same moment.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tcp.meeting import open_store_over

if TYPE_CHECKING:
    import torch.distributed as dist

_TIMEOUT = datetime.timedelta(minutes=5)


class Claims:
    """Counters and texts by name. No method is collective; each takes effect for all ranks before it returns."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def take(self, name: str) -> int:
        """Return how often `name` was taken before, by any rank: each number goes to one caller only."""
        return int(self._store.add(name, 1)) - 1

    def put(self, name: str, text: str) -> None:
        """Let all ranks see `text` under `name`."""
        self._store.set(name, text)

    def get(self, name: str) -> str:
        """Return the text that was put under `name`; it must be there."""
        return str(self._store.get(name).decode())

    def has(self, names: Sequence[str]) -> bool:
        """Return for each of `names` whether a text was put under it."""
        return bool(self._store.check(list(names)))


def open_claims(ranks: Ranks) -> Claims:
    """Return claims that all `ranks` share. Collective."""
    import torch.distributed as dist

    if ranks.world_size == 1:
        return Claims(dist.HashStore())
    return Claims(open_store_over(ranks.cpu, _TIMEOUT, ranks.num_nodes == 1))
