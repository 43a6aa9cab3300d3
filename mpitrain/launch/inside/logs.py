"""One log a host, and the links to the newest job's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mpitrain.launch.inside.place import Place

FOLDER = Path("logs")


def node_log(job: str, node: int) -> Path:
    """Return the log of one host."""
    return FOLDER / f"{job}_node{node}.log"


def link_newest_logs(place: Place) -> None:
    """Make latest_nodeN.log the log of this job's host N; of two jobs that start at once one wins. Raises OSError."""
    FOLDER.mkdir(exist_ok=True)
    for node in range(place.num_nodes) if place.node is None else (place.node,):
        link, fresh = FOLDER / f"latest_node{node}.log", FOLDER / f".latest_node{node}.{os.getpid()}"
        with suppress(OSError):  # a convenience, which must not end a job
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(node_log(place.name, node).name)
            fresh.replace(link)
