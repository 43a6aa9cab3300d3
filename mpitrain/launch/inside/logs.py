"""One log for each host, and links to the logs of the newest job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mpitrain.launch.inside.place import Place

FOLDER = Path("logs")


def node_log(job: str, node: int) -> Path:
    """Return the path of one host's log."""
    return FOLDER / f"{job}_node{node}.log"


def link_newest_logs(place: Place) -> None:
    """Link latest_nodeN.log to the log of this job's host N; if two jobs start at once one wins. Raises OSError."""
    FOLDER.mkdir(exist_ok=True)
    for node in range(place.num_nodes) if place.node is None else (place.node,):
        link, fresh = FOLDER / f"latest_node{node}.log", FOLDER / f".latest_node{node}.{os.getpid()}"
        with suppress(OSError):  # a missing link must not end the job
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(node_log(place.name, node).name)
            fresh.replace(link)
