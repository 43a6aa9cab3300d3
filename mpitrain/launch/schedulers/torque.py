"""Torque: PBS with a different syntax for hosts (`nodes=2:ppn=4:gpus=4`) and job arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mpitrain.launch import script
from mpitrain.launch.grammar import COUNT
from mpitrain.launch.inside.place import Place, checked
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.schedulers.pbs import Pbs, common_directives, slots


class Torque(Pbs):
    """Torque, and older PBS."""

    name = "torque"
    title = "a Torque script"
    heading = "Torque job script"
    index_variable = "PBS_ARRAYID"

    def directives(self, job: JobRequest) -> list[str]:
        """Return the directives for Torque's qsub."""
        gpus = f":gpus={job.gpus_per_node}" if job.gpus_per_node else ""
        memory = job.memory and f"-l mem={int(job.memory[:-1]) * job.nodes}{job.memory[-1].lower()}b"
        hosts = Counter(job.tasks_of_nodes).items()
        nodes = "+".join(f"{count}:ppn={tasks * job.cpus_per_task}{gpus}" for tasks, count in hosts)
        return script.directives("#PBS ", [
            ("", f"-N {job.job_name}"),
            ("number of hosts; for each host: cores, GPUs", f"-l nodes={nodes}"),
            ("memory of all hosts together", memory),
            *common_directives(job),
            ("one job for each combination of settings", job.sweep and f"-t 0-{len(job.combinations) - 1}"),
        ])  # fmt: skip

    def tasks(self, job: JobRequest, place: Place, environ: Mapping[str, str]) -> list[str]:
        """Return the host of each rank: Torque's file names a host once for each of its cores."""
        if environ.get("NPROC_PER_NODE"):
            return super().tasks(job, place, environ)
        cores = slots(environ)
        threads = int(checked(environ, "OMP_NUM_THREADS", COUNT, str(job.cpus_per_task)))
        return [host for host in place.hosts for _ in range(max(1, cores.count(host) // threads))]
