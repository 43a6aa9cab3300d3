"""Slurm: batch scripts for sbatch; inside the job srun starts the ranks, and restarts them on the remaining hosts."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mpitrain.cluster.host_list import expand_host_list
from mpitrain.launch import script
from mpitrain.launch.grammar import COUNT, COUNT_OR_ZERO, clock_text
from mpitrain.launch.inside.attempt import LAST_OWN_EXIT_CODE, LAUNCH_EXIT_CODE, STOPPED_EXIT_CODE, Again, Ranks
from mpitrain.launch.inside.place import Place, checked, gpus_of_host, tasks_per_node
from mpitrain.launch.inside.run_folder import RunFolder
from mpitrain.launch.inside.slurm_hosts import hosts_that_answer, once_a_host, start_watch
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.scheduler import INSIDE, Scheduler
from mpitrain.launch.variables import mpi_family_of_srun

_STOP_WATCH_TIMEOUT_S = 5
# srun ends ranks that exit shortly after the first one, by KILL or TERM.
_STOPPED_BY_WARNING = (STOPPED_EXIT_CODE, 128 + 9, 128 + 15)


class Slurm(Scheduler):
    """Slurm 20.11 and later."""

    name = "slurm"
    title = "a Slurm script"
    submit_arguments = ("sbatch", "--parsable")

    def lacks_mpi(self, job: JobRequest) -> bool:
        """Return whether srun starts the ranks without PMI."""
        return job.mpi == "none"

    def render(self, job: JobRequest) -> str:
        """Return a batch script for sbatch. No side effects."""
        fields = [*INSIDE, "mpi", "num_tasks", "packed_environment", "sweep"]
        fields += ["nodes"] if job.num_tasks else []
        fields += ["gpus_per_node"] if job.gpus_per_node else []
        fields += ["requeue", "restarts"] if job.trains else []
        start = [
            *script.beginning(job, "Slurm batch script (sbatch FILE).", _directives(job)),
            f'export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-{job.cpus_per_task}}}"  # one thread per core of a rank',
        ]
        return script.whole(job, start, mpi_family_of_srun(job), self.name, fields)

    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return where this job runs. Raises UserError."""
        name, index = checked(environ, "SLURM_JOB_ID", COUNT_OR_ZERO), None
        if job.sweep:
            index = int(checked(environ, "SLURM_ARRAY_TASK_ID", COUNT_OR_ZERO))
            name = f"{checked(environ, 'SLURM_ARRAY_JOB_ID', COUNT_OR_ZERO)}_{index}"
        num_nodes = int(checked(environ, "SLURM_JOB_NUM_NODES", COUNT))
        nodes = environ.get("SLURM_JOB_NODELIST")
        hosts = tuple(expand_host_list(nodes)) if nodes else ()
        return Place(name, num_nodes, _tasks_per_node(job, environ), hosts, index)

    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return the launcher that starts the ranks by srun."""
        checked(environ, "SLURM_CPUS_PER_TASK", COUNT, "1")
        threads = checked(environ, "OMP_NUM_THREADS", COUNT)
        if job.mpi == "none" and place.num_nodes > 1:
            # without MPI the ranks connect to an open port, which accepts only ranks that know this text
            environ.setdefault("MPITRAIN_SECRET", secrets.token_hex(16))
        environ.update(job.own_variables)
        return _SlurmRanks(job, place, _srun(job, place, threads), environ)

    def once_a_host(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the launcher that starts the command after it once on each host."""
        return once_a_host(place.num_nodes)


def _tasks_per_node(job: JobRequest, environ: Mapping[str, str]) -> int:
    """Return the ranks on each host: the number of GPUs that the job received, if the request has one rank a GPU.

    `sbatch --gpus-per-node=2 FILE` changes only the GPUs; SLURM_GPUS_PER_NODE is then `2`, or `a100:2` with a type.
    """
    gpus = gpus_of_host(environ) if environ.get("SLURM_GPUS_PER_NODE") else 0
    if gpus and not environ.get("NPROC_PER_NODE") and job.tasks_per_node == job.gpus_per_node:
        return gpus
    return tasks_per_node(job, environ)


class _SlurmRanks(Ranks):
    def __init__(self, job: JobRequest, place: Place, launcher: list[str], environ: dict[str, str]) -> None:
        super().__init__(launcher, environ)
        self.job, self.place = job, place
        # The rank that fails first writes its exit code here: after MPI_Abort srun kills the others and returns 137.
        self._exit_code_file = Path("logs").resolve() / f"{place.name}_exit_code"
        environ["MPITRAIN_EXIT_CODE_FILE"] = str(self._exit_code_file)
        self._exit_code_file.unlink(missing_ok=True)

    def exit_code(self, code: int) -> int:
        """Return the exit code of the rank that failed first, otherwise the launcher's."""
        left = self._exit_code_file.read_text().strip() if self._exit_code_file.exists() else ""
        self._exit_code_file.unlink(missing_ok=True)
        # Not 3: a lost host makes the other ranks exit with 3, and such a run may be restarted.
        is_own = code > LAST_OWN_EXIT_CODE and left.isdecimal() and int(left) != LAUNCH_EXIT_CODE
        return int(left) if is_own else code

    def again(self) -> Again | None:
        """Set the next start to the hosts that still answer, with their number of ranks; None if no host answers."""
        alive = hosts_that_answer(self.place.hosts, self.environ)
        if not alive:
            return None
        num_tasks = len(alive) * self.place.tasks_per_node
        num_tasks = min(num_tasks, self.job.num_tasks or num_tasks)
        self.launcher += [f"--nodes={len(alive)}", f"--nodelist={','.join(alive)}", f"--ntasks={num_tasks}"]
        return Again(
            f"; {len(alive)} of {self.place.num_nodes} hosts answer", f" and {num_tasks} ranks on {' '.join(alive)}"
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the first host during the block, if the job may be restarted on other hosts."""
        if not self.job.num_restarts or len(self.place.hosts) < 2:
            yield
            return
        job, requeue = self.environ["SLURM_JOB_ID"], self.job.requeue
        watch = start_watch(job, self.place.name, self.place.hosts, requeue, self.environ)
        try:
            yield
        finally:
            watch.terminate()
            with suppress(subprocess.TimeoutExpired):
                watch.wait(_STOP_WATCH_TIMEOUT_S)

    def finish(self, code: int, is_warned: bool, folder: RunFolder | None) -> None:
        """After a warning, requeue the job or print the command that resumes it; otherwise do nothing."""
        if folder is None or not is_warned or code not in _STOPPED_BY_WARNING:
            return
        if self.job.requeue:
            print("stopped before the time limit; requeued to resume from the checkpoint", flush=True)  # noqa: T201
            subprocess.run(["scontrol", "requeue", self.environ["SLURM_JOB_ID"]])  # noqa: S607
        else:
            again = f"sbatch --export=ALL,RESUME=1,OUTPUT={folder.path} SCRIPT"
            print(f"stopped before the time limit; to resume: {again}", flush=True)  # noqa: T201


def _directives(job: JobRequest) -> list[str]:
    table = [
        ("", f"--job-name={job.job_name}"),
        ("output of this script; the ranks write to logs/", f"--output=%x-{'%A_%a' if job.sweep else '%j'}.log"),
        ("", "--open-mode=append"),
        ("", f"--nodes={job.nodes}"),
        ("", job.num_tasks and f"--ntasks={job.num_tasks}"),
        ("", f"--ntasks-per-node={job.tasks_per_node}"),
        ("", f"--cpus-per-task={job.cpus_per_task}"),
        ("", job.gpus_per_node and f"--gpus-per-node={job.gpus_per_node}"),
        ("", job.memory and f"--mem={job.memory}"),
        ("", f"--time={clock_text(job.walltime_s)}"),
        ("signal before the time limit, to this script only (B:): the ranks then write a checkpoint",
         job.trains and f"--signal=B:USR1@{job.signal_s}"),
        ("a lost host does not end the job: the run restarts on the others", job.num_restarts and "--no-kill"),
        ("", "--requeue" if job.requeue else "--no-requeue"),
        ("", job.partition and f"--partition={job.partition}"),
        ("", job.account and f"--account={job.account}"),
        ("", job.mail and f"--mail-user={job.mail}"),
        ("", job.mail and "--mail-type=END,FAIL,REQUEUE"),
        ("one job for each combination of settings", job.sweep and f"--array=0-{len(job.combinations) - 1}"),
    ]  # fmt: skip
    return script.directives("#SBATCH ", table)


def _srun(job: JobRequest, place: Place, threads: str) -> list[str]:
    num_tasks = job.num_tasks or place.num_nodes * place.tasks_per_node
    return [
        "srun",
        f"--mpi={job.mpi}",  # with the wrong PMI each rank starts as a world of one rank
        "--export=ALL",  # after `sbatch --export=EPOCHS=200` srun would pass only EPOCHS to the ranks
        f"--nodes={place.num_nodes}",
        f"--ntasks={num_tasks}",
        f"--ntasks-per-node={place.tasks_per_node}",
        f"--cpus-per-task={threads}",  # since Slurm 22.05 srun does not inherit this from sbatch
        *(["--no-kill=off"] if job.num_restarts else []),  # a lost host ends the run, which is then restarted
        "--kill-on-bad-exit=1",  # a rank that fails ends all: the others would wait for it until the time limit
        "--cpu-bind=cores",
        "--label",
        f"--output=logs/{place.name}_node%n.log",
        "--open-mode=append",
    ]
