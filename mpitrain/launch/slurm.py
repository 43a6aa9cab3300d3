"""A job request as a Slurm batch script."""

from __future__ import annotations

from mpitrain.launch import script_parts as parts
from mpitrain.launch.grammar import clock_text
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.packed.unpack import unpack
from mpitrain.launch.variables import job_variables, mpi_family_of_srun

_INDEX = "SLURM_ARRAY_TASK_ID"
_PROBE_S, _WATCH_S = 30, 30
_ONCE_A_HOST = (
    'srun --mpi=none --overlap --export=ALL --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" '
    "--ntasks-per-node=1"
)
_ARRAY = ("SLURM_ARRAY_JOB_ID", _INDEX)

_SECRET = [
    "# without MPI the ranks of several hosts meet at an open port: only who has this text is heard there",
    'MPITRAIN_SECRET=${MPITRAIN_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d " \\n")}',
    "export MPITRAIN_SECRET",
    "",
]
# `wait` ends early, with 128 + the signal's number, when a trapped signal comes; asked again it gives the run's own.
_RUN_AND_WAIT = """\
# The warning before the time limit comes to this shell only: srun hands it to the ranks, which write a checkpoint and
# leave with exit code 5. TERM reaches them by itself, and is not passed on: srun would kill them.
warned=0 interrupted=0 run=
trap 'warned=1 interrupted=1; kill -USR1 "$run" 2>/dev/null || true' USR1
trap 'interrupted=1' TERM
# A rank that fails alone leaves its exit code here: MPI_Abort has srun kill the others, which makes srun's code 137.
export MPITRAIN_EXIT_CODE_FILE=$PWD/logs/${job}_exit_code
run_once() {
    interrupted=0
    rm -f "$MPITRAIN_EXIT_CODE_FILE"
    # in the background: a shell that waits for a command in the foreground would see the warning after its end
    RUN &
    run=$!
    # A signal ends `wait` before the run has ended: wait again, until it has.
    while :; do
        exit_code=0
        wait "$run" || exit_code=$?
        ((interrupted)) || break
        interrupted=0
    done
    # Not 3: a rank that lost the others is what a lost host leaves behind, which may start again.
    if ((exit_code > 5)) && [[ -s $MPITRAIN_EXIT_CODE_FILE && $(<"$MPITRAIN_EXIT_CODE_FILE") != 3 ]]; then
        exit_code=$(<"$MPITRAIN_EXIT_CODE_FILE")
    fi
}""".replace("RUN &", f"{parts.RUN} &")

_RESTART = """\
# Which hosts still answer: each is asked, all at once, and has {probe_s} seconds. Sets `alive`.
probe_hosts() {{
    local hosts host probes=()
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    mkdir -p "logs/${{job}}_alive" && rm -f "logs/${{job}}_alive"/*
    for host in "${{hosts[@]}}"; do
        {{
            timeout -k 5 {probe_s} srun --mpi=none --overlap --nodes=1 --ntasks=1 --nodelist="$host" true \\
                >/dev/null 2>&1 && : >"logs/${{job}}_alive/$host"
        }} &
        probes+=($!)
    done
    wait "${{probes[@]}}" || true
    alive=()
    for host in "${{hosts[@]}}"; do
        [[ ! -e logs/${{job}}_alive/$host ]] || alive+=("$host")
    done
    rm -rf "logs/${{job}}_alive"
}}

# a job that is cancelled stays so
cancelled=0
trap 'cancelled=1 interrupted=1' TERM
while :; do
    run_once
    # Results do not depend on the number of ranks: what is left goes on from the newest checkpoint, with no queue.
    if ((warned || cancelled)) || ! may_restart "$exit_code"; then break; fi
    probe_hosts
    if ((warned || cancelled || ${{#alive[@]}} == 0)); then break; fi
    choose_go_on
    num_tasks={num_tasks}
    launch+=(--nodes="${{#alive[@]}}" --nodelist="$(IFS=,; echo "${{alive[*]}}")" --ntasks="$num_tasks")
    echo "the run ended with exit code $exit_code; ${{#alive[@]}} of $SLURM_JOB_NUM_NODES hosts answer: again with" \\
        "${{go_on[*]}} and $num_tasks ranks on ${{alive[*]}}, $restarts_left times more at most"
done"""

_WATCH = """\
# Slurm keeps a job with --no-kill whose first host is lost, and this shell with it, until the time limit. Two of the
# other hosts look now and then whether that is so, and {end}; logs/JOB_watch.log says so.
watcher=
watch_first_host() {{
    local hosts others
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    others=("${{hosts[@]:1:2}}")
    ((${{#others[@]}})) || return 0
    # shellcheck disable=SC2016,SC2094  # for the shell on those hosts, which has the name of its log
    srun --mpi=none --overlap --no-kill --nodes="${{#others[@]}}" --ntasks="${{#others[@]}}" --output=none \\
        --nodelist="$(IFS=,; echo "${{others[*]}}")" bash -c 'while sleep {poll_s}; do
            shown=$(scontrol --oneliner show job "$1") && [[ $shown == *JobState=RUNNING* ]] || continue
            [[ $shown =~ \\ NodeList=([^ ]+) ]] || continue
            if scontrol show hostnames "${{BASH_REMATCH[1]}}" | grep -qxF "$2"; then continue; fi
            echo "$2, the first host, is lost: {said}" >>"$3"
            {command}
            exit
        done' watch "$SLURM_JOB_ID" "${{hosts[0]}}" "logs/${{job}}_watch.log" 2>>"logs/${{job}}_watch.log" &
    watcher=$!
}}
watch_first_host
"""

_REQUEUE = """\
# Stopped by the warning: back into the queue, to go on from the checkpoint. 137 and 143 count too: srun ends ranks that
# leave a moment after the first one. Without a warning (scancel, a failure) the job is over.
if ((warned)) && ((exit_code == 5 || exit_code == 137 || exit_code == 143)); then
    echo "stopped before the time limit; requeued to go on from the checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$exit_code\""""

_NO_REQUEUE = """\
# Stopped by the warning: say how to go on. 137 and 143 count too: srun ends ranks that leave after the first one.
if ((warned)) && ((exit_code == 5 || exit_code == 137 || exit_code == 143)); then
    echo "stopped before the time limit; to go on: sbatch --export=ALL,RESUME=1,OUTPUT=$run_folder SCRIPT"
fi
exit "$exit_code\""""


def render_slurm(job: JobRequest) -> str:
    """Return the text of a batch script for sbatch. Pure."""
    numbers = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", *(_ARRAY if job.sweep else ()))
    variables = job_variables(job, mpi_family_of_srun(job))
    lines = [
        *parts.beginning(job, "Slurm batch script: sbatch FILE", _directives(job), numbers),
        *_job_name(job),
        *parts.tasks_per_node(job),
        "",
        *parts.what_ranks_run(job, variables, _INDEX, "SLURM_CPUS_PER_TASK"),
        *parts.log_links("SLURM_JOB_NUM_NODES"),
        "",
        *(_SECRET if job.mpi == "none" and job.nodes > 1 else []),
        *_srun(job),
        "",
        *unpack(job, _ONCE_A_HOST, f"timeout 60 {_ONCE_A_HOST}"),
        *_end(job),
    ]
    return "\n".join(lines) + "\n"


def _directives(job: JobRequest) -> list[str]:
    table = [
        ("the name in the queue", f"--job-name={job.job_name}"),
        ("this script's own words; the ranks' are in logs/", f"--output=%x-{'%A_%a' if job.sweep else '%j'}.log"),
        ("a restarted job adds to its log", "--open-mode=append"),
        ("hosts", f"--nodes={job.nodes}"),
        ("ranks in all: the hosts need not hold equally many", job.num_tasks and f"--ntasks={job.num_tasks}"),
        ("ranks on each host", f"--ntasks-per-node={job.tasks_per_node}"),
        ("cores for each rank's threads", f"--cpus-per-task={job.cpus_per_task}"),
        ("a GPU for each rank", job.gpus_per_node and f"--gpus-per-node={job.gpus_per_node}"),
        ("memory of each host", job.memory and f"--mem={job.memory}"),
        ("the time limit", f"--time={clock_text(job.walltime_s)}"),
        (
            "before the limit USR1, and to this shell only (B:): it must know why the run stopped",
            job.trains and f"--signal=B:USR1@{job.signal_s}",
        ),
        ("a lost host does not end the job: the others go on", job.num_restarts and "--no-kill"),
        (
            "after a lost host or the time limit the job goes on" if job.requeue else "the job never restarts",
            "--requeue" if job.requeue else "--no-requeue",
        ),
        ("where to queue", job.partition and f"--partition={job.partition}"),
        ("whom the time is charged to", job.account and f"--account={job.account}"),
        ("who is told", job.mail and f"--mail-user={job.mail}"),
        ("of what", job.mail and "--mail-type=END,FAIL,REQUEUE"),
        ("one job for each list of settings", job.sweep and f"--array=0-{len(job.sweep) - 1}"),
    ]
    return parts.with_reasons(table, "#SBATCH ")


def _job_name(job: JobRequest) -> list[str]:
    value = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.sweep else "$SLURM_JOB_ID"
    return ["# one name for a job and all its restarts", f"job={value}", ""]


def _srun(job: JobRequest) -> list[str]:
    num_tasks = str(job.num_tasks) if job.num_tasks else '"$((SLURM_JOB_NUM_NODES * tasks_per_node))"'
    table = [
        (
            "without MPI: the ranks meet over TCP, at an address from Slurm's own variables"
            if job.mpi == "none"
            else "how MPI's ranks find each other; with the wrong kind each would believe to be alone",
            f"--mpi={job.mpi}",
        ),
        ("everything above: after `sbatch --export=EPOCHS=200` srun would hand on EPOCHS alone", "--export=ALL"),
        ("all hosts of the job", '--nodes="$SLURM_JOB_NUM_NODES"'),
        ("ranks in all", f"--ntasks={num_tasks}"),
        ("ranks on each host", '--ntasks-per-node="$tasks_per_node"'),
        (
            "cores of each rank: since Slurm 22.05 srun does not take them over from sbatch",
            '--cpus-per-task="$OMP_NUM_THREADS"',
        ),
        ("but a lost host ends the run, which then starts again", job.num_restarts and "--no-kill=off"),
        ("one rank that fails ends all: the others would wait for it until the time limit", "--kill-on-bad-exit=1"),
        ("each rank keeps its cores, and with them its caches and its memory", "--cpu-bind=cores"),
        ("each line begins with its rank", "--label"),
        ("one log a host", '--output="logs/${job}_node%n.log"'),
        ("a restarted job adds to its logs", "--open-mode=append"),
    ]
    options = ((reason, option and f"launch+=({option})") for reason, option in table)
    return [*parts.launcher(job, "srun"), *parts.with_reasons(options, "")]


def _end(job: JobRequest) -> list[str]:
    if not job.trains:
        return ['"${launch[@]}" "${command[@]}"']
    end = _REQUEUE if job.requeue else _NO_REQUEUE
    if not job.num_restarts:
        return [_RUN_AND_WAIT, "run_once", end]
    every = "$((${#alive[@]} * tasks_per_node))"
    num_tasks = f"$(({job.num_tasks} < {every[3:-2]} ? {job.num_tasks} : {every[3:-2]}))" if job.num_tasks else every
    begin, stop = _watch(job)
    restart = _RESTART.format(probe_s=_PROBE_S, num_tasks=num_tasks)
    return [_RUN_AND_WAIT, *parts.restarts(job), *begin, restart, *stop, end]


def _watch(job: JobRequest) -> tuple[list[str], list[str]]:
    """Return what looks after the first host of several, and what ends that."""
    if job.nodes == 1:
        return [], []
    requeue, cancel = 'scontrol requeue "$1" || scancel "$1"', 'scancel "$1"'
    end, said, command = (
        ("send the job back into the queue", "back into the queue, to go on from the checkpoint", requeue)
        if job.requeue
        else ("end the job", "the job ends; go on with RESUME=1", cancel)
    )
    begin = _WATCH.format(end=end, said=said, command=command, poll_s=_WATCH_S)
    return [begin], ['[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true']
