"""By hand: commands to type on each host, for hosts without a scheduler and without mpirun."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from shlex import quote

from mpitrain.launch import script
from mpitrain.launch.inside.attempt import Ranks, start_process
from mpitrain.launch.inside.logs import node_log
from mpitrain.launch.inside.place import Place
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.scheduler import INSIDE, Scheduler
from mpitrain.launch.variables import job_variables


class Manual(Scheduler):
    """Commands for each host; the ranks connect over TCP to the first host."""

    name = "manual"
    title = "commands for each host"
    claims_folder = False

    def obstacle(self, job: JobRequest) -> str | None:
        """Return why the request cannot be started by hand; None if it can."""
        if job.packed_environment:
            return f"--packed-environment: --scheduler {self.name} cannot unpack it on the hosts; use slurm or pbs"
        if job.sweep:
            return "--sweep: --scheduler manual starts one run; use slurm or pbs and their job arrays"
        if not job.hosts and job.nodes > 1:
            return (
                f"--nodes {job.nodes}: --scheduler manual needs the hosts' names, because the ranks connect to the "
                "first host; give --hosts a,b,..."
            )
        return None

    def lacks_mpi(self, job: JobRequest) -> bool:
        """Return True: no MPI launcher starts the ranks."""
        return True

    def render(self, job: JobRequest) -> str:
        """Return the commands, one block for each host. No side effects."""
        lines = [
            "#!/usr/bin/env bash",
            "# Commands to type on each host: copy a host's block into a shell there, all blocks within 5 minutes.",
            "# The ranks connect over TCP to the first host; gloo, or NCCL on GPUs, sums gradients. MPI is not used.",
        ]
        for node in range(job.nodes):
            lines += ["", *_host_block(job, node)]
        return "\n".join(lines) + "\n"

    def place(self, job: JobRequest, environ: Mapping[str, str]) -> Place:
        """Return all hosts and the number of this one."""
        name = f"{job.job_name}-{time.strftime('%Y%m%d-%H%M%S')}"
        return Place(name, job.nodes, job.tasks_per_node, job.hosts, node=job.host_number)

    def ranks(self, job: JobRequest, place: Place, environ: dict[str, str]) -> Ranks:
        """Return the launcher of the ranks of this host; their output is printed and logged."""
        counts, node = job.tasks_of_nodes, job.host_number
        environ.update(job.own_variables)
        ranks = _HostRanks([], environ, node_log(place.name, node), passes_terminate=True)
        ranks.first, ranks.count = sum(counts[:node]), counts[node]
        return ranks


class _HostRanks(Ranks):
    """The ranks of one host, each started with RANK (its global number) and LOCAL_RANK (its number on the host)."""

    first: int = 0
    count: int = 1

    def start(self, command: Sequence[str], output: int | None) -> list[subprocess.Popen[bytes]]:
        """Start all ranks of this host."""
        return [
            start_process(command, {**self.environ, "RANK": str(self.first + rank), "LOCAL_RANK": str(rank)}, output)
            for rank in range(self.count)
        ]


def _host_block(job: JobRequest, node: int) -> list[str]:
    hosts = job.hosts or ("127.0.0.1",)
    fields = [*INSIDE, "job_name", "nodes", "num_tasks", "hosts"]
    named = job.model_copy(
        update={"run_folder": job.run_folder or f"mpitrain_{job.folder_kind}" if job.trains else None}
    )
    return [
        f"# ---- host {node + 1} of {job.nodes}: {hosts[node]}",
        *(f"module load {quote(name)}" for name in job.modules),
        f"export OMP_NUM_THREADS={job.cpus_per_task}  # one thread per core of a rank",
        *script.exports(job_variables(job, "none")),
        *(
            [f"export MPITRAIN_SECRET={job.secret}  # the port accepts only ranks that know this text"]
            if job.secret
            else []
        ),
        f"export MASTER_ADDR={quote(hosts[0])} MASTER_PORT={job.master_port} WORLD_SIZE={job.total_tasks}",
        f"python={quote(job.python)}",
        *script.inside_job(named, Manual.name, fields, [f"--host-number={node}"], replaces_shell=False),
    ]
