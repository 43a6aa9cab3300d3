"""Progress messages while a command's ranks load their packages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpitrain.cluster import Starting


def begin_starting(log_level: str) -> Starting:
    """Return the reporter of the start; it prints on the root the stages that take long. Loading is the first."""
    from mpitrain.cluster import Starting, claimed_rank, say_on_stderr
    from mpitrain.cluster.starting import LOADING, said_after_s

    if log_level != "debug":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its C++ parts warn past Python's warnings
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its profiler prints when it starts and stops
    starting = Starting(say_on_stderr if claimed_rank(os.environ) == 0 else None, said_after_s(os.environ))
    starting.now(LOADING)
    return starting
