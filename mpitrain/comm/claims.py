"""Dynamic distribution of work: counters and short texts that all ranks share, without collectives.

They are kept in a torch.distributed store in rank 0's process, served by a C++ thread. Unlike one-sided MPI over a
network it responds while rank 0 computes, and unlike files it needs no file system on which all nodes see a change at
once.
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
    """Shared counters and texts by name. No method is collective; each takes effect for all ranks before it returns."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def take(self, name: str) -> int:
        """Return how many times any rank has taken `name` before. No two callers receive the same number."""
        return int(self._store.add(name, 1)) - 1

    def put(self, name: str, text: str) -> None:
        """Store `text` under `name`, visible to all ranks."""
        self._store.set(name, text)

    def get(self, name: str) -> str:
        """Return the text stored under `name`, which must exist."""
        return str(self._store.get(name).decode())

    def has(self, names: Sequence[str]) -> bool:
        """Return whether a text is stored under every one of `names`."""
        return bool(self._store.check(list(names)))


def open_claims(ranks: Ranks) -> Claims:
    """Return counters and texts that all `ranks` share. Collective."""
    import torch.distributed as dist

    if ranks.world_size == 1:
        return Claims(dist.HashStore())
    return Claims(open_store_over(ranks.cpu, _TIMEOUT, ranks.num_nodes == 1))
