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
        """Return why one host is not enough."""
        if job.nodes > 1:
            return f"--nodes {job.nodes}: --scheduler local has this host only; use slurm, pbs or manual"
        if job.packed_environment:
            return f"--packed-environment: {self.name} has no hosts to unpack it on; use slurm or pbs"
        if job.sweep:
            return "--sweep: --scheduler local starts one run; add --ensemble, or use slurm or pbs and their job arrays"
        return None

    def render(self, job: JobRequest) -> str:
        """Return a script for bash. Pure."""
        fields = [*INSIDE, *(["restarts"] if job.num_restarts else [])]
        start = [
            *script.beginning(job, "Script for this host (bash FILE)."),
            f"export OMP_NUM_THREADS={job.cpus_per_task}  # one thread a core of the rank",
        ]
        return script.whole(job, start, "either", self.name, fields)

    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return this host; the run is named by its start and this process. Raises UserError."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        return Place(name, 1, tasks_per_node(job, environ), ("localhost",))

    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return what starts the ranks by mpirun; their output is shown and logged."""
        if place.tasks_per_node > detect_usable_core_count():
            # Open MPI's waiting ranks would keep the working ones from a core.
            environ.update(OVERSUBSCRIBED_VARIABLES | {"OMPI_MCA_mpi_yield_when_idle": "1"})
        words = [choose_mpirun(job.python, environ), "-np", str(place.tasks_per_node)]
        environ.update(job.own_variables)
        return Ranks(words, environ, log=node_log(place.name, 0), passes_terminate=True)
