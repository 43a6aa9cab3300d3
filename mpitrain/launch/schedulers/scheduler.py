"""`Scheduler`: base class of the kinds of jobs, from checking a request to starting the ranks inside the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from mpitrain.launch.inside.attempt import Ranks
from mpitrain.launch.inside.place import Place
from mpitrain.launch.job_request import JobRequest

# Fields of the request that every script passes to the process inside the job.
INSIDE = ("command", "tasks_per_node", "log_level", "environment", "run_folder")


class Scheduler(ABC):
    """One kind of job. Stateless: a table holds one instance of each."""

    name: ClassVar[str]
    title: ClassVar[str]
    """Name of its script in messages."""
    submit_arguments: ClassVar[tuple[str, ...]] = ()
    """The command that submits a script; empty if there is none."""

    claims_folder: ClassVar[bool] = True
    """Whether one process of the job decides for all hosts how the job resumes in its run folder."""

    def obstacle(self, job: JobRequest) -> str | None:
        """Return why the request cannot be a job of this kind, with advice; None if it can."""
        return None

    def lacks_mpi(self, job: JobRequest) -> bool:
        """Return whether the ranks are started without MPI between them."""
        return False

    @abstractmethod
    def render(self, job: JobRequest) -> str:
        """Return the script. No side effects; `obstacle` must have returned None for the request."""

    @abstractmethod
    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return where this job runs, from its variables. Raises UserError for a variable of a wrong form."""

    @abstractmethod
    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return the launcher of this job's ranks; adds the ranks' variables to `environ`."""

    def once_a_host(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the launcher that starts the command after it once on each host, to unpack environments."""
        raise NotImplementedError
