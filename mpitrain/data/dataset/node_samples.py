"""Samples that every rank holds whole, read once and kept once on each node (`data.shared_memory`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from mpitrain.comm.session import Session
from mpitrain.data.samples import Samples


@contextmanager
def read_once_a_node(read: Callable[[], Samples], session: Session) -> Iterator[Samples]:
    """Let one rank of each node `read`; give every rank of the node samples in the same memory. Collective.

    Nobody may write to the arrays, nor touch them behind the `with`. Raises, on all ranks, what `read` raises, and
    LaunchError where MPI does not connect the ranks or a node lacks the shared memory.
    """
    own = session.together(lambda: read() if session.ranks.local_rank == 0 else None)
    template = _of_my_node(None if own is None else own.changed(lambda column: column[:0]), session)
    length = _of_my_node(None if own is None else len(own), session)
    windows = {}
    for name, column in template.columns().items():
        window = session.control.node_shared_tensor((length, *column.shape[1:]), torch.from_numpy(column).dtype)
        if window.fills and own is not None:
            window.tensor.numpy()[...] = own.columns()[name]
        window.publish()
        windows[name] = window
    del own  # its memory, before the others go on
    arrays: dict[str, Any] = {name: window.tensor.numpy() for name, window in windows.items()}
    yield replace(template, **arrays)
    # Not after an error: the other ranks might not come.
    for window in windows.values():
        window.close()


def _of_my_node(value: Any, session: Session) -> Any:
    """Return the value of this node's first rank. Collective."""
    node = session.ranks.node_rank
    return next(v for n, v in session.gather_object((node, value)) if n == node and v is not None)
