"""A job request as commands that are typed on each host by hand: no scheduler, no mpirun."""

from __future__ import annotations

import re
from shlex import quote

from mpitrain.errors import UserError
from mpitrain.launch import script_parts as parts
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.variables import job_variables


def render_manual(job: JobRequest) -> str:
    """Return the commands of each host, each host's in a block of its own. Pure. Raises UserError without hosts."""
    if job.sweep:
        raise UserError("--sweep: --scheduler manual is one run; use slurm or pbs, whose job arrays it needs")
    if not job.hosts and job.nodes > 1:
        raise UserError(
            f"--nodes {job.nodes}: --scheduler manual needs the hosts' names, so that the ranks meet on the first; "
            "give --hosts a,b,..."
        )
    hosts = job.hosts or ("127.0.0.1",)
    lines = [
        "#!/usr/bin/env bash",
        "# Commands to type on each host: copy one host's block into a shell there, all blocks within half an hour.",
        "# The ranks meet over TCP on the first host; gradients go over gloo, or NCCL on GPUs. MPI takes no part.",
    ]
    first_rank = 0
    for node, tasks in enumerate(job.tasks_of_nodes):
        lines += ["", *_host_block(job, hosts, node, range(first_rank, first_rank + tasks))]
        first_rank += tasks
    return "\n".join(lines) + "\n"


def _host_block(job: JobRequest, hosts: tuple[str, ...], node: int, ranks: range) -> list[str]:
    return [
        f"# ---- host {node + 1} of {job.nodes}: {hosts[node]}",
        *(f"module load {quote(name)}" for name in job.modules),
        *parts.threads(job),
        *parts.exports(job_variables(job, "none")),
        *(f"export {name}={quote(value)}" for name, _, value in (line.partition("=") for line in job.environment)),
        "# where the ranks meet, and how many they are",
        *([f"export MPITRAIN_SECRET={job.secret}"] if job.secret else []),
        f"export MASTER_ADDR={quote(hosts[0])} MASTER_PORT={job.master_port} WORLD_SIZE={job.total_tasks}",
        "# what this host's ranks say: on the terminal and in a log",
        f"mkdir -p logs; log={job.job_name}-$(date +%Y%m%d-%H%M%S)_node{node}.log",
        f'ln -sfn "$log" logs/latest_node{node}.log',
        "# each rank's number in all and on this host",
        *(f'RANK={rank} LOCAL_RANK={rank - ranks.start} {_command(job)} 2>&1 | tee -a "logs/$log" &' for rank in ranks),
        "# ends when the ranks of this host have ended",
        "wait",
    ]


def _yaml_text(text: str) -> str:
    # A name like 123 stays text in YAML's quotes; a plain name is easier to read without.
    if re.fullmatch(r"/?[A-Za-z]+[_/][A-Za-z0-9_./-]*", text):
        return text
    return "'" + text.replace("'", "''") + "'"


def _command(job: JobRequest) -> str:
    words = [job.python, "-m", "mpitrain", *job.command.split()]
    words += [job.config_path] if job.config_path is not None else []
    words += job.settings
    if job.trains:
        words += [f"output.model_dir={_yaml_text(job.run_folder or f'mpitrain_{job.folder_word}')}"]
        words += ["--log-level", job.log_level] if job.command == "train" else []
    return " ".join(quote(word) for word in words)
