"""Which scheduler there is on this host: a job's own variables first, then the commands on the PATH."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

SLURM, PBS, LSF, GRID_ENGINE = "slurm", "pbs", "LSF", "Grid Engine"
_JOB_VARIABLES = ((SLURM, "SLURM_JOB_ID"), (PBS, "PBS_JOBID"), (LSF, "LSB_JOBID"))
# Slurm first: it brings a qsub of its own.
_COMMANDS = ((SLURM, "sbatch"), (PBS, "qsub"), (LSF, "bsub"))


@dataclass(frozen=True)
class FoundScheduler:
    """A scheduler's name, and what it was known by."""

    name: str
    because: str


def find_scheduler(environ: Mapping[str, str], find_command: Callable[[str], str | None]) -> FoundScheduler | None:
    """Return the scheduler of this host, None without one; `find_command` is `shutil.which`."""
    for name, variable in _JOB_VARIABLES:
        if environ.get(variable):
            return FoundScheduler(name, f"{variable} is set, this is inside a job")
    for name, command in _COMMANDS:
        if find_command(command):
            if command == "qsub" and environ.get("SGE_ROOT"):
                return FoundScheduler(GRID_ENGINE, "qsub is on the PATH, and SGE_ROOT is set")
            return FoundScheduler(name, f"{command} is on the PATH")
    return None
