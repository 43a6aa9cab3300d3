"""This host, without a scheduler: mpirun starts the ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from mpitrain.cluster import OVERSUBSCRIBED_VARIABLES, detect_usable_core_count
from mpitrain.launch import script
from mpitrain.launch.inside.attempt import Ranks
from mpitrain.launch.inside.logs import node_log
from mpitrain.launch.inside.mpirun import choose_mpirun
from mpitrain.launch.inside.place import Place, tasks_per_node
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.scheduler import INSIDE, Scheduler


class Local(Scheduler):
    """mpirun on this host."""

    name = "local"
    title = "a script for this host"

    def obstacle(self, job: JobRequest) -> str | None:
        """Return why the job cannot run on this host alone; None if it can."""
        if job.nodes > 1:
            return f"--nodes {job.nodes}: --scheduler local uses this host only; use slurm, pbs or manual"
        if job.packed_environment:
            return f"--packed-environment: --scheduler {self.name} cannot unpack it on the hosts; use slurm or pbs"
        if job.sweep:
            return "--sweep: --scheduler local starts one run; add --ensemble, or use slurm or pbs and their job arrays"
        return None

    def render(self, job: JobRequest) -> str:
        """Return a script for bash. No side effects."""
        fields = [*INSIDE, *(["restarts"] if job.num_restarts else [])]
        start = [
            *script.beginning(job, "Script for this host (bash FILE)."),
            f"export OMP_NUM_THREADS={job.cpus_per_task}  # one thread per core of a rank",
        ]
        return script.whole(job, start, "either", self.name, fields)

    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return this host; the job is named after its start time and process id. Raises UserError."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        return Place(name, 1, tasks_per_node(job, environ), ("localhost",))

    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return the launcher that starts the ranks by mpirun; their output is printed and logged."""
        if place.tasks_per_node > detect_usable_core_count():
            # Open MPI's waiting ranks would otherwise occupy the cores that working ranks need.
            environ.update(OVERSUBSCRIBED_VARIABLES | {"OMPI_MCA_mpi_yield_when_idle": "1"})
        launcher = [choose_mpirun(job.python, environ), "-np", str(place.tasks_per_node)]
        environ.update(job.own_variables)
        return Ranks(launcher, environ, log=node_log(place.name, 0), passes_terminate=True)
