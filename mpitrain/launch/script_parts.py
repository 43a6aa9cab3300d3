"""The parts that all job scripts share, as lists of lines; every value of the user's is quoted where it enters."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from mpitrain.launch.grammar import (
    SHELL_BACKEND,
    SHELL_BATCH_SIZE,
    SHELL_COUNT,
    SHELL_COUNT_OR_ZERO,
    SHELL_LOG_LEVEL,
    SHELL_NUMBER,
    SHELL_PATH,
)
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.variables import Variable

# What a job takes from its environment: `sbatch --export=ALL,EPOCHS=200,LR=1e-4`, `qsub -v EPOCHS=200`.
OVERRIDES = (
    ("EPOCHS", "training.epochs", SHELL_COUNT),
    ("LR", "training.optimizer.learning_rate", SHELL_NUMBER),
    ("BATCH_SIZE", "training.batch_size", SHELL_BATCH_SIZE),
    ("DATA", "data.data_path", SHELL_PATH),
    ("SEED", "seed", SHELL_COUNT_OR_ZERO),
    ("BACKEND", "compute.backend", SHELL_BACKEND),
    ("NCCL_TIMEOUT", "distributed.timeout_s", SHELL_COUNT),
)
# An ensemble chooses its members' ranks: their batches are those of all ranks together.
_OVERRIDES_OF_ENSEMBLES = (
    ("MEMBERS", "ensemble.members", SHELL_COUNT),
    *((name, "training.global_batch_size" if name == "BATCH_SIZE" else key, form) for name, key, form in OVERRIDES),
)
# What job scripts of other trainers read, and what to set instead: said, never silently passed over.
OLDER_VARIABLES = {
    "TRAIN_SAMPLES": "set data.num_samples or data.max_patterns in the settings",
    "VAL_SAMPLES": "set data.validation_split in the settings",
    "DATA_TYPE": "set data.samples in the settings",
    "GPUS": "write the script with --gpus-per-node, or set NPROC_PER_NODE to start fewer ranks",
}
_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MPI4PY_LIBMPI")
NOT_FOUND_EXIT_CODE, WRONG_INPUT_EXIT_CODE, STOPPED_EXIT_CODE = 3, 2, 5

_CHECK = f"""\
# A value from outside is compared with its form and never run.
check() {{ # NAME VALUE FORM
    [[ $2 =~ ^($3)$ ]] && return
    echo "$1=$2: not of the form $3; correct it or unset $1" >&2
    exit {WRONG_INPUT_EXIT_CODE}
}}"""

_TAKE = """\
# A setting of this one job from its environment; printed, since a shell's own variable may have such a name.
take() { # NAME KEY FORM
    local value=${!1:-}
    [[ -n $value ]] || return 0
    check "$1" "$value" "$3"
    echo "$1 of the environment: $2=$value"
    command+=("$2=$value")
}"""

# What a job leaves that can be gone on with.
_HAS_BEGUN = {
    "run": 'compgen -G "$run_folder/checkpoints/*/commit.json" >/dev/null',
    "ensemble": "[[ -e $run_folder/config.yaml ]]",
}
_OWN_ATTEMPT = """\
# A restarted job goes on from its newest checkpoint. The folder's job_id tells its own earlier attempt, which may be
# replaced where it has no checkpoint yet, from a run of another job, which the training refuses to touch.
choose_go_on() {
    go_on=()
    if [[ ${RESUME:-} == 1 ]]; then
        go_on=(--resume)
    elif [[ -f $run_folder/job_id && $(<"$run_folder/job_id") == "$job" ]]; then
        if HAS_BEGUN; then
            go_on=(--resume)
        else
            go_on=(--overwrite)
        fi
    fi
}
choose_go_on
if [[ ${RESUME:-} == 1 || ! ( -e $run_folder/config.yaml || -e $run_folder/checkpoints ) ]]; then
    mkdir -p "$run_folder"
    echo "$job" >"$run_folder/job_id"
fi"""
# Needs `python`.
CHOOSE_MPIRUN = """\
# an MPI that pip installed lies next to Python, and is the one that Python loads; else the site's own
mpirun=$(dirname "$(command -v "$python")")/mpirun
[[ -x $mpirun ]] || mpirun=mpirun
mpirun=${MPIRUN:-$mpirun}"""
# Old versions of bash take an empty array for an unset variable.
RUN = '"${launch[@]}" "${command[@]}" ${go_on[@]+"${go_on[@]}"}'

_MAY_RESTART = """\
# What a lost host or a killed rank leaves behind may start again; a wrong input, a failed training (codes 1, 2, 4) and
# a stop that was asked for (5) may not. Code 3 may where the run had begun: a rank did not answer any more.
restarts_left={restarts}
may_restart() {{ # EXIT_CODE
    ((restarts_left > 0)) || return 1
    case $1 in
        0|1|2|4|5) return 1 ;;
        3) {has_begun} || return 1 ;;
    esac
    restarts_left=$((restarts_left - 1))
}}"""


_READ_BY_TRAINING = (
    "# Settings of one job, from its environment: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED, BACKEND LOG_LEVEL, and",
    "# NPROC_PER_NODE (ranks a host), RESUME=1 (go on in OUTPUT), PYTHON, CONDA_ENV, NCCL_TIMEOUT (s).",
)
_READ_BY_ALL = "# Read from its environment: NPROC_PER_NODE (ranks a host), PYTHON, CONDA_ENV."
_MODULES = ("# the site's software; before the strict mode, since modules' scripts use unset variables",)
_NUMBERS = ("# the scheduler's numbers too: bash's arithmetic runs what a number with brackets holds",)


def beginning(job: JobRequest, title: str, directives: Iterable[str] = (), numbers: Iterable[str] = ()) -> list[str]:
    """Return the first lines of a script, to the function `check`: what it reads from outside passes that first.

    The directives come before any command, the modules before the shell's strict mode, and the checks of the
    scheduler's own `numbers` before any other line reads these.
    """
    return [
        "#!/usr/bin/env bash",
        f"# {title}",
        "# Written by `mpitrain launch`. Start it from the folder that the paths in it are relative to.",
        *(_READ_BY_TRAINING if job.trains else [_READ_BY_ALL]),
        *directives,
        "",
        *(_MODULES if job.modules else ()),
        *(f"module load {quote(name)} || exit {NOT_FOUND_EXIT_CODE}" for name in job.modules),
        "# a failed command, an unset variable or a broken pipe ends the job at once",
        "set -euo pipefail",
        "",
        _CHECK,
        *(_NUMBERS if numbers else ()),
        *(f'check {name} "${{{name}:-}}" {quote(SHELL_COUNT_OR_ZERO)}' for name in numbers),
        "",
    ]


def with_reasons(table: Iterable[tuple[str, object]], prefix: str) -> list[str]:
    """Return two lines for each row that has words: its reason as a comment, and `prefix` with the words."""
    return [line for reason, words in table if words for line in (f"# {reason}", f"{prefix}{words}")]


_OLDER = """\
# Read by other scripts, not by this one: what is set is answered.
older() { # NAME ADVICE
    [[ -z ${!1:-} ]] || echo "note: $1=${!1}: not read by this script; $2" >&2
}"""
# An environment's own interpreter and commands come first; the rest of an activation is for shells at a terminal.
_CONDA = """\
# the Python of this conda environment, a name or a folder
if [[ -n ${CONDA_ENV:-} ]]; then
    [[ $CONDA_ENV == */* ]] || CONDA_ENV=$(conda info --base)/envs/$CONDA_ENV
    export PATH=$CONDA_ENV/bin:$PATH
    python=$CONDA_ENV/bin/python
fi"""


def exports(variables: Iterable[Variable]) -> list[str]:
    """Return the exports of the ranks' variables, with their reasons."""
    return with_reasons(((one.reason, f"{one.name}={quote(one.value)}") for one in variables), "export ")


def launcher(job: JobRequest, words: str) -> list[str]:
    """Return the start of the array `launch`: `words` (shell text), with the request's own variables before them.

    Those never become variables of the script's own shell, which would evaluate some of them.
    """
    if not job.environment:
        return [f"launch=({words})"]
    lines = " ".join(quote(line) for line in job.environment)
    return ["# variables of the request: for the ranks, not for this shell", f"launch=(env {lines} {words})"]


def threads(job: JobRequest, scheduler_variable: str = "") -> list[str]:
    """Return the thread count's export; `scheduler_variable` knows it better where the job was changed on its way.

    Needs `check`.
    """
    reason = "# one thread a core of the rank: without this each rank would start a thread for every core of the host"
    if not scheduler_variable:
        return [reason, f"export OMP_NUM_THREADS={job.cpus_per_task}"]
    return [
        reason,
        f'export OMP_NUM_THREADS="${{{scheduler_variable}:-{job.cpus_per_task}}}"',
        f'check {scheduler_variable} "$OMP_NUM_THREADS" {quote(SHELL_COUNT)}',
    ]


def tasks_per_node(job: JobRequest) -> list[str]:
    """Return the check of NPROC_PER_NODE, the number of ranks a host. Needs `check`."""
    return [
        "# ranks on each host",
        f"tasks_per_node=${{NPROC_PER_NODE:-{job.tasks_per_node}}}",
        f'check NPROC_PER_NODE "$tasks_per_node" {quote(SHELL_COUNT)}',
    ]


def what_ranks_run(
    job: JobRequest, variables: Iterable[Variable], index_variable: str = "", scheduler_variable: str = ""
) -> list[str]:
    """Return the ranks' threads, variables, command and folder. Needs `job` and `check`.

    `index_variable` numbers the jobs of a sweep; `scheduler_variable`: see `threads`.
    """
    return [
        *threads(job, scheduler_variable),
        *exports(variables),
        "",
        *_rank_command(job),
        *_run_folder(job, index_variable),
        *_sweep_settings(job, index_variable),
        "",
    ]


def _rank_command(job: JobRequest) -> list[str]:
    """Return the lines that build the array `command`: what runs on every rank. Needs `job` and `check`."""
    lines = [
        "# what runs on every rank",
        f"python={quote(job.python)}",
        _CONDA,
        "python=${PYTHON:-$python}",
        'command -v "$python" >/dev/null || {',
        '    echo "$python: not found on $(hostname); set PYTHON, or load its module" >&2',
        f"    exit {NOT_FOUND_EXIT_CODE}",
        "}",
        f'command=("$python" -m mpitrain {job.command})',
    ]
    if job.config_path is not None:
        path = quote(job.config_path)
        lines += [
            f"command+=({path})",
            f"[[ -r {path} ]] || {{",
            f'    echo {path}": not found from $PWD; start the job from the folder that this path is relative to" >&2',
            f"    exit {WRONG_INPUT_EXIT_CODE}",
            "}",
        ]
    lines += [f"command+=({quote(setting)})" for setting in job.settings]
    lines += _log_option(job) if job.command == "train" else []
    return [*lines, *(_training_options(job) if job.trains else _not_of_training(job))]


def _sweep_settings(job: JobRequest, index_variable: str) -> list[str]:
    """Return the choice of this array job's own settings; none without a sweep."""
    if not job.sweep:
        return []
    cases = [
        f"    {number}) command+=({' '.join(quote(setting) for setting in settings)}) ;;"
        for number, settings in enumerate(job.sweep)
    ]
    return [
        "# this array job's own settings; last, so that nothing above makes all jobs alike",
        f"case ${index_variable} in",
        *cases,
        f'    *) echo "{index_variable}=${index_variable}: no such job in this sweep" >&2; exit 2 ;;',
        "esac",
    ]


def _run_folder(job: JobRequest, index_variable: str) -> list[str]:
    """Return the choice of the run folder, and what a restarted job does in it. Needs `job`, `command`, `check`."""
    if not job.trains:
        return []
    named = quote(job.run_folder) if job.run_folder is not None else f"mpitrain_{job.folder_word}-$job"
    lines = [
        "# the run folder: named, or one for each job",
        f"run_folder={named}",
        "run_folder=${OUTPUT:-$run_folder}",
        f'[[ -z ${{OUTPUT:-}} ]] || check OUTPUT "$OUTPUT" {quote(SHELL_PATH)}',
    ]
    if job.sweep:
        # The folder that is named after the job has the index in its name already.
        condition = "" if job.run_folder is not None else "[[ -z ${OUTPUT:-} ]] || "
        lines += ["# each job of the array has a folder of its own", f"{condition}run_folder+=-${index_variable}"]
    return [
        *lines,
        "# in YAML's quotes, so that a name like 123 stays text",
        "command+=(\"output.model_dir='${run_folder//\\'/\\'\\'}'\")",
        _OWN_ATTEMPT.replace("HAS_BEGUN", _HAS_BEGUN[job.folder_word]),
    ]


def log_links(num_nodes: str) -> list[str]:
    """Return the links to the newest log of each of `num_nodes` (a shell word) hosts. Needs `job`."""
    return [
        "# one log a host; latest_nodeN.log is the newest job's (of two that start at once one wins)",
        "mkdir -p logs",
        f"for ((node = 0; node < {num_nodes}; node++)); do",
        '    ln -sfn "${job}_node$node.log" "logs/latest_node$node.log" || true',
        "done",
    ]


def _log_option(job: JobRequest) -> list[str]:
    return [
        "# how much the ranks' logs hold",
        f"log_level=${{LOG_LEVEL:-{job.log_level}}}",
        f'check LOG_LEVEL "$log_level" {quote(SHELL_LOG_LEVEL)}',
        'command+=(--log-level "$log_level")',
    ]


def _training_options(job: JobRequest) -> list[str]:
    overrides = OVERRIDES if job.command == "train" else _OVERRIDES_OF_ENSEMBLES
    return [
        _TAKE,
        *(f"take {name} {key} {quote(form)}" for name, key, form in overrides),
        _OLDER,
        *(f"older {name} {quote(advice)}" for name, advice in OLDER_VARIABLES.items()),
    ]


def _not_of_training(job: JobRequest) -> list[str]:
    names = [*(name for name, _, _ in OVERRIDES), "OUTPUT", "RESUME", "LOG_LEVEL", *OLDER_VARIABLES]
    advice = quote(f"it runs mpitrain {job.command}, which trains nothing")
    return [_OLDER, f"for name in {' '.join(names)}; do", f'    older "$name" {advice}', "done"]


def forwarded_environment(job: JobRequest, variables: Iterable[Variable]) -> list[str]:
    """Return the words that give the ranks of other hosts this script's environment. Needs `launch`."""
    names = [*_PATHS, "OMP_NUM_THREADS", *(variable.name for variable in variables)]
    own = " ".join(quote(line) for line in job.environment)
    return [
        "# not every mpirun hands its environment to other hosts: env does it under all of them",
        "launch+=(env)",
        f"for name in {' '.join(dict.fromkeys(names))}; do",
        '    [[ -z ${!name:-} ]] || launch+=("$name=${!name}")',
        "done",
        *([f"launch+=({own})"] if own else []),
    ]


def restarts(job: JobRequest) -> list[str]:
    """Return the function `may_restart`, and how often it says yes. Needs `run_folder`."""
    return [_MAY_RESTART.format(restarts=job.num_restarts, has_begun=_HAS_BEGUN[job.folder_word])]
