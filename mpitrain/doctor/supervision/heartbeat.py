"""Reports of a rank's steps to its supervisor: a second process that ends the rank when a step exceeds its limit.

A second process and not a thread: a hanging MPI_Init holds Python's lock, so no thread of this process would run. It is
the rank's child and not its parent: a launcher, the kernel or a user that kills the process which mpirun started must
kill the rank, and a parent killed so would leave a hanging rank behind (seen with MPICH and Open MPI).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mpitrain.comm.supervision.end_signal import let_end_signal_exit
from mpitrain.comm.supervision.status_folder import StatusFolder
from mpitrain.doctor.check_result import CheckResult


@dataclass
class Heartbeat:
    """Reports each step of this rank: to the other ranks in the status folder, with a limit to its supervisor."""

    status: StatusFolder
    limit_s: float
    _supervisor: subprocess.Popen[str]
    _facts: dict[str, Any] = field(default_factory=dict)
    _failure: str = ""
    _step: int = 0

    def enter(self, title: str, limit_s: float | None = None) -> None:
        """Arrive at the next step; every rank must pass the same steps in the same order. Not collective."""
        self._step += 1
        self._post(title)
        self._tell(step=self._step, title=title, limit_s=limit_s or self.limit_s)

    def tell_facts(self, facts: dict[str, Any]) -> None:
        """Let the other ranks read `facts` (of JSON's types) in the status folder."""
        self._facts = facts
        self._post("facts")

    def tell_failure(self, text: str) -> None:
        """Let the other ranks, should they wait for this one, read why it cannot come."""
        self._failure = text
        self._post("failed")

    def tell_results(self, results: Sequence[CheckResult]) -> None:
        """Let the supervisor show these results too, should it have to report."""
        self._tell(results=[asdict(result) for result in results])

    def leave(self, limit_s: float) -> None:
        """Announce the end of this process, which may still have to wait for MPI_Finalize."""
        self.enter("end", limit_s)
        self._tell(leaving=True)

    def _post(self, title: str) -> None:
        self.status.post(
            step=self._step,
            title=title,
            host=socket.gethostname(),
            pid=os.getpid(),
            facts=self._facts,
            failure=self._failure,
        )

    def _tell(self, **message: Any) -> None:
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.write(json.dumps(message) + "\n")
            self._supervisor.stdin.flush()


def start_heartbeat(
    status: StatusFolder, world_size: int, is_one_node: bool, limit_s: float, as_json: bool
) -> Heartbeat:
    """Start this process's supervisor; it ends with this process."""
    let_end_signal_exit()
    order = {
        "folder": str(status.folder),
        "rank": status.rank,
        "world_size": world_size,
        "is_one_node": is_one_node,
        "pid": os.getpid(),
        "as_json": as_json,
    }
    command = [sys.executable, "-m", "mpitrain.doctor.supervision.supervisor", json.dumps(order)]
    return Heartbeat(status, limit_s, subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
