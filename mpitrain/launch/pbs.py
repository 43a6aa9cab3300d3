"""A job request as a PBS script (PBS Professional and OpenPBS)."""

from __future__ import annotations

from mpitrain.launch import script_parts as parts
from mpitrain.launch.grammar import clock_text
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.packed.unpack import unpack
from mpitrain.launch.variables import job_variables

_INDEX = "PBS_ARRAY_INDEX"
_ONCE_A_HOST = '"$mpirun" -machinefile "logs/${job}_each_host" -np "${#hosts[@]}"'

_PER_NODE_LOG = """\
# mpirun brings all output to one place: each rank writes into its own host's log instead, numbered as in the job
# shellcheck disable=SC2016  # for the ranks' shells, not for this one
launch+=(bash -c '
    job=$1 node=0
    for host in $2; do [[ $host == "$(hostname -s)" ]] && break; node=$((node + 1)); done
    shift 2
    exec "$@" >>"logs/${job}_node$node.log" 2>&1
' rank "$job" "${hosts[*]%%.*}")"""

_END = """\
# PBS sends no warning before the limit: `timeout` does. mpirun hands it to the ranks, which write a checkpoint and
# leave with exit code 5. In the foreground: mpirun alone is told, not its helpers, which would die of it.
exit_code=0
timeout --foreground --preserve-status --signal=USR1 {seconds} {run} || exit_code=$?
if ((exit_code == 5)); then
    echo "stopped with a checkpoint; to go on: qsub -v RESUME=1,OUTPUT=$run_folder SCRIPT"
fi
exit "$exit_code\""""


def render_pbs(job: JobRequest) -> str:
    """Return the text of a script for qsub. Pure."""
    variables = job_variables(job, "either")
    lines = [
        *parts.beginning(job, "PBS job script: qsub FILE", _directives(job), (_INDEX,) if job.sweep else ()),
        "# PBS starts jobs in the home folder",
        'cd "$PBS_O_WORKDIR"',
        "# one name for a job and all its restarts: its number, without the server and an array's brackets",
        "job=${PBS_JOBID%%.*}",
        "job=${job//[^A-Za-z0-9_-]/_}",
        *parts.tasks_per_node(job),
        "",
        *parts.what_ranks_run(job, variables, _INDEX),
        "# each host once, in the job's order",
        "mapfile -t hosts < <(awk '!seen[$0]++' \"$PBS_NODEFILE\")",
        *parts.log_links("${#hosts[@]}"),
        "",
        parts.CHOOSE_MPIRUN,
        *_unpack(job),
        *_mpirun(job),
        *parts.forwarded_environment(job, variables),
        _PER_NODE_LOG,
        "",
        *_end(job),
    ]
    return "\n".join(lines) + "\n"


def _unpack(job: JobRequest) -> list[str]:
    lines = unpack(job, _ONCE_A_HOST, f"timeout 60 {_ONCE_A_HOST}")
    return ['printf "%s\\n" "${hosts[@]}" >"logs/${job}_each_host"', *lines] if lines else []


def _directives(job: JobRequest) -> list[str]:
    table = [
        ("the name in the queue", f"-N {job.job_name}"),
        ("hosts, and of each: cores, ranks, threads of a rank, GPUs, memory", f"-l select={_select(job)}"),
        ("whole hosts' shares apart, not all on one host", "-l place=scatter" if job.nodes > 1 else None),
        ("the time limit", f"-l walltime={clock_text(job.walltime_s)}"),
        ("one file for output and errors", "-j oe"),
        (
            "after a lost host the job starts again, and goes on" if job.requeue else "the job never restarts",
            f"-r {'y' if job.requeue else 'n'}",
        ),
        ("where to queue", job.partition and f"-q {job.partition}"),
        ("whom the time is charged to", job.account and f"-A {job.account}"),
        ("who is told", job.mail and f"-M {job.mail}"),
        ("of what: abort and end", job.mail and "-m ae"),
        ("one job for each list of settings", job.sweep and f"-J 0-{len(job.sweep) - 1}"),
    ]
    return parts.with_reasons(table, "#PBS ")


def _select(job: JobRequest) -> str:
    counts = job.tasks_of_nodes
    return "+".join(_chunk(job, counts.count(count), count) for count in sorted(set(counts), reverse=True))


def _chunk(job: JobRequest, nodes: int, tasks: int) -> str:
    chunk = f"{nodes}:ncpus={tasks * job.cpus_per_task}:mpiprocs={tasks}:ompthreads={job.cpus_per_task}"
    chunk += f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    return chunk + (f":mem={job.memory.lower()}b" if job.memory else "")


def _mpirun(job: JobRequest) -> list[str]:
    return [
        "# the file names each host once for every rank; NPROC_PER_NODE asks for another number of them",
        'hostfile=$PBS_NODEFILE num_tasks=$(wc -l <"$PBS_NODEFILE")',
        "if [[ -n ${NPROC_PER_NODE:-} ]]; then",
        "    hostfile=logs/${job}_hosts",
        '    for host in "${hosts[@]}"; do',
        '        for ((task = 0; task < tasks_per_node; task++)); do echo "$host"; done',
        '    done >"$hostfile"',
        '    num_tasks=$(wc -l <"$hostfile")',
        "fi",
        *parts.launcher(job, '"$mpirun" -machinefile "$hostfile" -np "$num_tasks"'),
    ]


def _end(job: JobRequest) -> list[str]:
    if not job.trains:
        return ['"${launch[@]}" "${command[@]}"']
    return [_END.format(seconds=job.walltime_s - job.signal_s, run=parts.RUN)]
