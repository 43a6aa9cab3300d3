"""PBS Professional and OpenPBS: scripts for qsub; inside of the job mpirun starts the ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpitrain.cluster.node_log import node_log_variable
from mpitrain.errors import LaunchError
from mpitrain.launch import script
from mpitrain.launch.grammar import COUNT_OR_ZERO, clock_text
from mpitrain.launch.inside.attempt import STOPPED_EXIT_CODE, Ranks
from mpitrain.launch.inside.logs import FOLDER
from mpitrain.launch.inside.mpirun import choose_mpirun, forwarded
from mpitrain.launch.inside.place import Place, checked, tasks_per_node
from mpitrain.launch.inside.run_folder import RunFolder
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.scheduler import INSIDE, Scheduler


class Pbs(Scheduler):
    """PBS Professional and OpenPBS."""

    name = "pbs"
    title = "a PBS script"
    heading = "PBS job script"
    submit_arguments = ("qsub",)
    index_variable = "PBS_ARRAY_INDEX"

    def render(self, job: JobRequest) -> str:
        """Return a script for qsub. No side effects."""
        fields = [*INSIDE, "cpus_per_task", "walltime", "signal_s", "packed_environment", "sweep"]
        start = [
            *script.beginning(job, f"{self.heading} (qsub FILE).", self.directives(job)),
            'cd "$PBS_O_WORKDIR"  # PBS starts jobs in the home folder',
            f"export OMP_NUM_THREADS={job.cpus_per_task}  # one thread per core of a rank",
        ]
        return script.whole(job, start, "either", self.name, fields)

    def directives(self, job: JobRequest) -> list[str]:
        """Return the directives for qsub."""
        select = "+".join(_chunk(job, nodes, tasks) for tasks, nodes in Counter(job.tasks_of_nodes).items())
        return script.directives("#PBS ", [
            ("", f"-N {job.job_name}"),
            ("number of hosts; for each host: cores, ranks, threads of a rank, GPUs, memory", f"-l select={select}"),
            ("", job.nodes > 1 and "-l place=scatter"),
            *common_directives(job),
            ("one job for each combination of settings", job.sweep and f"-J 0-{len(job.combinations) - 1}"),
        ])  # fmt: skip

    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return where this job runs. Raises UserError; LaunchError for a file of hosts that cannot be read."""
        # the job's number, without the name of the server; brackets of an array become _
        name = re.sub(r"[^A-Za-z0-9_-]", "_", checked(environ, "PBS_JOBID", ".+").partition(".")[0])
        index = int(checked(environ, self.index_variable, COUNT_OR_ZERO)) if job.sweep else None
        hosts = tuple(dict.fromkeys(slots(environ)))
        return Place(name, len(hosts), tasks_per_node(job, environ), hosts, index)

    def tasks(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the host of each rank: PBS_NODEFILE names a host once for each of its ranks."""
        if environ.get("NPROC_PER_NODE"):
            return [host for host in place.hosts for _ in range(place.tasks_per_node)]
        return slots(environ)

    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return the launcher that starts the ranks by mpirun; each rank writes to the log of its host."""
        tasks = self.tasks(job, place, environ)
        launcher = [*_mpirun(job, place, tasks, "hosts", environ), *forwarded(environ)]
        launcher += [node_log_variable(FOLDER.resolve() / place.name, place.hosts), *job.environment]
        # PBS sends no warning before the time limit
        return _PbsRanks(launcher, environ, warn_after_s=job.walltime_s - job.signal_s if job.trains else 0)

    def once_a_host(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the launcher that starts the command after it once on each host."""
        return [*_mpirun(job, place, place.hosts, "each_host", environ), *forwarded(environ)]


class _PbsRanks(Ranks):
    def finish(self, code: int, is_warned: bool, folder: RunFolder | None) -> None:
        """After a stop, print the command that resumes the run."""
        if code == STOPPED_EXIT_CODE and folder is not None:
            again = f"qsub -v RESUME=1,OUTPUT={folder.path} SCRIPT"
            print(f"stopped after writing a checkpoint; to resume: {again}", flush=True)  # noqa: T201


def slots(environ: Mapping[str, str]) -> list[str]:
    """Return the lines of the job's file of hosts. Raises LaunchError."""
    path = environ.get("PBS_NODEFILE", "")
    try:
        return Path(path).read_text().split()
    except (OSError, UnicodeDecodeError):
        raise LaunchError(f"PBS_NODEFILE={path}: cannot be read; is this a PBS job?") from None


def _mpirun(job: JobRequest, place: Place, tasks: Sequence[str], suffix: str, environ: Mapping[str, str]) -> list[str]:
    """Return mpirun's command for one process on each host in `tasks`; write its machine file, named with `suffix`."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{place.name}_{suffix}"
    path.write_text("".join(f"{host}\n" for host in tasks))
    return [choose_mpirun(job.python, environ), "-machinefile", str(path), "-np", str(len(tasks))]


def common_directives(job: JobRequest) -> list[tuple[str, object]]:
    """Return the rows (reason, directive) that PBS and Torque share."""
    return [
        ("", f"-l walltime={clock_text(job.walltime_s)}"),
        ("one file for output and errors", "-j oe"),
        ("after a lost host the job is requeued and resumes" if job.requeue else "", f"-r {'ny'[job.requeue]}"),
        ("", job.partition and f"-q {job.partition}"),
        ("", job.account and f"-A {job.account}"),
        ("", job.mail and f"-M {job.mail}"),
        ("", job.mail and "-m ae"),
    ]


def _chunk(job: JobRequest, nodes: int, tasks: int) -> str:
    chunk = f"{nodes}:ncpus={tasks * job.cpus_per_task}:mpiprocs={tasks}:ompthreads={job.cpus_per_task}"
    chunk += f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    return chunk + (f":mem={job.memory.lower()}b" if job.memory else "")
