"""What a command does while its ranks load: say so, load once for all ranks of a node, open the files beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    from mpitrain.cluster.starting import Starting
    from mpitrain.comm.supervision.node_watch import NodeWatch

_ENTRY_POINT = "mpitrain.cli.main:main"
_LOADING = "loading PyTorch"


def begin_starting(log_level: str) -> Starting:
    """Return what says, on the root alone, what takes long at the start: loading PyTorch is the first of it."""
    from mpitrain.cluster.launchers import claimed_rank
    from mpitrain.cluster.place import ORIGIN
    from mpitrain.cluster.starting import Starting, said_after_s, say_on_stderr

    if log_level != "debug":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its C++ parts warn past Python's warnings
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its profiler prints when it starts and stops
    starting = Starting(say_on_stderr if claimed_rank(os.environ) == 0 else None, said_after_s(os.environ))
    if ORIGIN.parent is None:
        starting.now(_LOADING)
    else:  # the process in whose place this one runs has waited for it, and said so
        starting.times.append((_LOADING, time.monotonic() - ORIGIN.begun_s))
    return starting


def load_once_a_node(watch: NodeWatch, modules: Sequence[str], starting: Starting | None = None) -> None:
    """Go on in a fork of a process of this node that has loaded `modules`; return where there is none to be had."""
    from mpitrain.comm.fork_server.client import run_in_fork

    run_in_fork(watch, modules, _ENTRY_POINT, starting.done if starting else lambda: None)


def open_files_early(environ: Mapping[str, str]) -> None:
    """Start the process that opens files first, on one rank a node: it loads its libraries while this one does."""
    from mpitrain.cluster.launchers import claimed_rank, read_claims
    from mpitrain.data.files.first_opening import FIRST_OPENING

    with suppress(LaunchError):  # which the start of the ranks reports
        claims = read_claims(environ)
        local_rank = next((claim.local_rank for claim in claims if claim.local_rank is not None), None)
        if (claimed_rank(environ) if local_rank is None else local_rank) == 0:
            FIRST_OPENING.begin()
