"""`mpitrain launch --inside-job`: process that a job script starts and that ends with the job. No torch, no MPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpitrain.cluster import finding_package
from mpitrain.cluster.own_python import NO_IMPORTS_FROM_HERE
from mpitrain.launch.inside.attempt import Attempts
from mpitrain.launch.inside.logs import link_newest_logs
from mpitrain.launch.inside.place import Place, note_of_idle_gpus
from mpitrain.launch.inside.run_folder import RunFolder
from mpitrain.launch.inside.settings import ranks_command
from mpitrain.launch.inside.unpack import unpacked
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.scheduler import Scheduler


def run_inside_job(job: JobRequest, scheduler: Scheduler) -> int:
    """Start the job's ranks, restart them if a host or a rank was lost, and return their exit code.

    Raises UserError for an environment variable of a wrong form, LaunchError if a host cannot start its ranks.
    """
    # A packed environment contains its own copy of the package. No imports from the job's folder, which is not trusted.
    environ = dict(os.environ) if job.packed_environment else finding_package(os.environ)
    environ |= NO_IMPORTS_FROM_HERE
    place = scheduler.place(job, environ)
    folder = RunFolder.of(job, place, environ, scheduler.claims_folder) if job.trains else None
    command = ranks_command(job, place, environ, folder)
    note = note_of_idle_gpus(place, environ) if job.trains else None
    if note is not None:
        sys.stderr.write(f"note: {note}\n")
    link_newest_logs(place)
    with _unpacked(job, scheduler, place, environ) as python:
        ranks = scheduler.ranks(job, place, environ)
        return Attempts(ranks, folder, job.num_restarts).run([python, *command])


@contextmanager
def _unpacked(job: JobRequest, scheduler: Scheduler, place: Place, environ: dict[str, str]) -> Iterator[str]:
    """Yield the path of the ranks' Python: the request's, or that of its packed environment."""
    if job.packed_environment is None:
        yield job.python
        return
    launcher = scheduler.once_a_host(job, place, environ)
    with unpacked(job.packed_environment, place.name, launcher, environ) as python:
        yield str(python)
