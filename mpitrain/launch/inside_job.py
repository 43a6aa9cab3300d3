"""`mpitrain launch --inside-job`: started by a job script, ended with the job. Loads no torch and no MPI."""

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
    """Start the job's ranks, again where that helps, and return their exit code.

    Raises UserError for a variable that is not of its form, LaunchError where a host cannot serve.
    """
    # The ranks of a packed environment have a package of their own. The job's folder may hold a stranger's files.
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
    """Yield the ranks' Python: the request's, or the one of its packed environment."""
    if job.packed_environment is None:
        yield job.python
        return
    words = scheduler.once_a_host(job, place, environ)
    with unpacked(job.packed_environment, place.name, words, environ) as python:
        yield str(python)
