"""`Scheduler`: what each kind of job owns, from the request's obstacles to the start of ranks inside of the job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from mpitrain.launch.inside.attempt import Ranks
from mpitrain.launch.inside.place import Place
from mpitrain.launch.job_request import JobRequest

# Fields of the request that every job needs inside.
INSIDE = ("command", "tasks_per_node", "log_level", "environment", "run_folder")


class Scheduler(ABC):
    """One kind of job. Stateless: a table holds one of each."""

    name: ClassVar[str]
    title: ClassVar[str]
    """How messages name it."""
    submit_words: ClassVar[tuple[str, ...]] = ()
    """The command that sends a script; empty where none does."""

    claims_folder: ClassVar[bool] = True
    """Whether one process of the job decides how it goes on in its folder."""

    def obstacle(self, job: JobRequest) -> str | None:
        """Return why the request cannot be a job of this kind, and what to do; None where it can."""
        return None

    def lacks_mpi(self, job: JobRequest) -> bool:
        """Return whether the ranks are started without MPI between them."""
        return False

    @abstractmethod
    def render(self, job: JobRequest) -> str:
        """Return the script. Pure; the request has no obstacle."""

    @abstractmethod
    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return where this job runs, from its variables. Raises UserError for one that is not of its form."""

    @abstractmethod
    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return what starts the ranks of this job; the ranks' own variables go into `environ`."""

    def once_a_host(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the words that start what follows them once on each host; for schedulers that unpack environments."""
        raise NotImplementedError
