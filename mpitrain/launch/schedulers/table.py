"""Table of all schedulers by name, and the choice of the scheduler of this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpitrain.launch.schedulers.local import Local
from mpitrain.launch.schedulers.manual import Manual
from mpitrain.launch.schedulers.pbs import Pbs
from mpitrain.launch.schedulers.scheduler import Scheduler
from mpitrain.launch.schedulers.slurm import Slurm
from mpitrain.launch.schedulers.torque import Torque

SCHEDULERS: Mapping[str, Scheduler] = {one.name: one for one in (Slurm(), Pbs(), Torque(), Local(), Manual())}
_JOB_VARIABLES = ((Slurm.name, "SLURM_JOB_ID"), (Pbs.name, "PBS_JOBID"), ("LSF", "LSB_JOBID"))
# Slurm first: some of its installations contain a qsub too.
_COMMANDS = ((Slurm.name, "sbatch"), (Pbs.name, "qsub"), ("LSF", "bsub"))


def find_scheduler(environ: Mapping[str, str], find_command: Callable[[str], str | None]) -> tuple[str, str] | None:
    """Return the scheduler of this host and how it was recognised, or None; `find_command` is `shutil.which`."""
    for name, variable in _JOB_VARIABLES:
        if environ.get(variable):
            return name, f"{variable} is set: this is inside a job"
    for name, command in _COMMANDS:
        if find_command(command):
            if command == "qsub" and environ.get("SGE_ROOT"):
                return "Grid Engine", "qsub is on the PATH, and SGE_ROOT is set"
            return name, f"{command} is on the PATH"
    return None
