"""The description of a launch in its claim on a run folder: host, process, job; and whether it has ended."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mpitrain.comm.agent.processes import has_ended, process_born
from mpitrain.errors import one_line
from mpitrain.json_text import read_json

# For each scheduler: the variable of the job's number, and that of the number of its restarts.
_JOBS = (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("PBS_JOBID", ""), ("LSB_JOBID", ""), ("JOB_ID", ""))
_LARGEST_BYTES, _LONGEST_WORD = 1 << 16, 100


@dataclass(frozen=True)
class Launch:
    """One start of a run, by its root rank."""

    run: str
    """The identity of the launch: 16 random hexadecimal digits."""
    host: str
    process: int
    born: str
    """The start time of the process, which distinguishes it from a later one with the same number."""
    system: str
    """The boot of the machine and the process namespace; empty if the system does not report them."""
    folder: str
    """The absolute path of the folder: a claim copied or moved with its folder is not taken for one made here."""
    job: str
    attempt: str
    """The number of restarts of the job, if the scheduler counts them."""
    started: str

    @property
    def description(self) -> str:
        """Process, host and start time for a message: one line, whatever the claim file contains."""
        host, started = (one_line(text[:_LONGEST_WORD]) for text in (self.host, self.started))
        return f"process {self.process} on {host} since {started}"

    def is_over(self, other: Launch) -> bool | None:
        """Return whether the launch has ended, as seen by `other`, the present launch; None if it cannot be known."""
        if self.system and (self.system, self.folder) == (other.system, other.folder):
            return has_ended(self.process, self.born)
        if self.job and self.job == other.job and self.attempt != other.attempt:
            return True  # a scheduler restarts a job only after its processes have ended
        return None

    def to_json(self) -> bytes:
        """Return the content of its claim file."""
        return (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()


def describe_launch(folder: Path, environ: Mapping[str, str]) -> Launch:
    """Return the launch of this process for `folder`, with a new identity."""
    job, count = next(((job, count) for job, count in _JOBS if environ.get(job)), ("", ""))
    return Launch(
        run=secrets.token_hex(8),
        host=socket.gethostname(),
        process=os.getpid(),
        born=process_born(os.getpid()),
        system=_system(),
        folder=str(folder.resolve()),
        job=environ.get(job, ""),
        attempt=environ.get(count, "0") if count else "",
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def read_launch(path: Path) -> Launch | None:
    """Return the launch in a claim file; None if the file does not exist, cannot be read or is not valid."""
    try:
        values = read_json(path, _LARGEST_BYTES)
        launch = Launch(**values)
    except (OSError, ValueError, TypeError):
        return None
    kinds = (isinstance(value, int if name == "process" else str) for name, value in values.items())
    return launch if all(kinds) else None


def _system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
