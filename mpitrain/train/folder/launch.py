"""A launch, as described by its claim on a run folder: host, process, job; and whether it is over."""

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

# Of each scheduler, the variable of the job, and the one that counts how often it was started.
_JOBS = (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("PBS_JOBID", ""), ("LSB_JOBID", ""), ("JOB_ID", ""))
_LARGEST_BYTES, _LONGEST_WORD = 1 << 16, 100


@dataclass(frozen=True)
class Launch:
    """One start of a run, by its root rank."""

    run: str
    """The identity, 16 hexadecimal digits: different for each launch."""
    host: str
    process: int
    born: str
    """The start time of the process, which tells it from a later one of the same number."""
    system: str
    """The boot of the machine and the namespace of processes; empty where the system tells neither."""
    folder: str
    """Where the folder is for this process: a copy of it, or one that was moved, is another one."""
    job: str
    attempt: str
    """Which start of the job it is, where the scheduler counts."""
    started: str

    @property
    def words(self) -> str:
        """Name process and host, and since when, for a message, on one line whatever the claim says."""
        host, started = (one_line(text[:_LONGEST_WORD]) for text in (self.host, self.started))
        return f"process {self.process} on {host} since {started}"

    def is_over(self, other: Launch) -> bool | None:
        """Tell whether the launch is over, as seen by `other`, this process; None where it cannot tell."""
        if self.system and (self.system, self.folder) == (other.system, other.folder):
            return has_ended(self.process, self.born)
        if self.job and self.job == other.job and self.attempt != other.attempt:
            return True  # a scheduler starts a job anew when its processes have ended
        return None

    def to_json(self) -> bytes:
        """Return the text of its claim."""
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
    """Return the launch that a claim tells; None where the file is not there, cannot be read or tells none."""
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
