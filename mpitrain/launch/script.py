"""Lines that all job scripts share. Every value given by the user is quoted here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any

from mpitrain.launch.job_request import JobRequest, flag_of
from mpitrain.launch.variables import MpiFamily, Variable, job_variables

NOT_FOUND_EXIT_CODE = 3
_LINE_CHARACTERS = 118
_TRAINING = (
    "# Variables of one job: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED BACKEND LOG_LEVEL NCCL_TIMEOUT (s), NPROC_PER_NODE",
    "# (ranks a host), RESUME=1 (continue the run in OUTPUT), PYTHON and CONDA_ENV (the ranks' Python).",
)
_OTHERS = ("# Variables of one job: NPROC_PER_NODE (ranks a host), PYTHON and CONDA_ENV (the ranks' Python).",)
_PYTHON = """\
if [[ -n ${CONDA_ENV:-} ]]; then  # a name, or a folder
    [[ $CONDA_ENV == */* ]] || CONDA_ENV=$(conda info --base 2>/dev/null)/envs/$CONDA_ENV || {
        echo "CONDA_ENV: no conda on the PATH of $(hostname); load its module, or give the environment's folder" >&2
        exit 3
    }
    python=$CONDA_ENV/bin/python PATH=$CONDA_ENV/bin:$PATH
fi
python=${PYTHON:-$python}
if ! command -v "$python" >/dev/null; then
    echo "$python: not found on $(hostname); set PYTHON, or load its module" >&2
    exit 3
fi"""


def beginning(job: JobRequest, title: str, directives: Iterable[str] = ()) -> list[str]:
    """Return the first lines of a script: title, directives, modules, and bash's strict mode."""
    return [
        "#!/usr/bin/env bash",
        f"# {title} Written by `mpitrain launch`; its paths are relative to the folder it is started in.",
        *(_TRAINING if job.trains else _OTHERS),
        *directives,
        "",
        # before the strict mode, since modules' scripts use unset variables
        *(f"module load {quote(name)} || exit {NOT_FOUND_EXIT_CODE}" for name in job.modules),
        "set -euo pipefail",
    ]


def directives(prefix: str, table: Iterable[tuple[str, object]]) -> list[str]:
    """Return a line for each row (reason, directive) with a directive; a reason, if any, is a comment above it."""
    lines = []
    for reason, directive in table:
        if directive:
            lines += [f"# {reason}", f"{prefix}{directive}"] if reason else [f"{prefix}{directive}"]
    return lines


def exports(variables: Iterable[Variable]) -> list[str]:
    """Return the export lines of the ranks' variables, each with its reason as a comment."""
    return [f"export {one.name}={quote(one.value)}  # {one.reason}" for one in variables]


def whole(job: JobRequest, start: Sequence[str], family: MpiFamily, scheduler: str, fields: Sequence[str]) -> str:
    """Return a script: `start`, exports for an MPI `family`, the choice of Python, then the `inside_job` command."""
    python = [f"python={quote(job.python)}", *_PYTHON.splitlines()]
    lines = [*start, *exports(job_variables(job, family)), "", *python, *inside_job(job, scheduler, fields)]
    return "\n".join(lines) + "\n"


def inside_job(
    job: JobRequest, scheduler: str, fields: Sequence[str], words: Sequence[str] = (), replaces_shell: bool = True
) -> list[str]:
    """Return the command of a script, which starts the ranks and runs until the job has ended.

    `fields` are the fields of the request that the scheduler needs inside the job; each becomes a command-line option.
    `words` (shell text) follow them. The command replaces the job's shell (exec), so that signals reach it.
    """
    values = {name: job.num_restarts if name == "restarts" else getattr(job, name) for name in fields}
    flags = [quote(flag) for name, value in values.items() for flag in _flags(name, value)]
    settings = [quote(text) for text in (job.config_path, *job.settings) if text is not None]
    start = f'{"exec " * replaces_shell}"$python" -P -m mpitrain launch --inside-job'
    return _wrapped([start, f"--scheduler={scheduler}", '--python="$python"', *flags, *words, *settings])


def _flags(field: str, value: Any) -> list[str]:
    flag = flag_of(field)
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if field == "hosts":
        return [f"{flag}={','.join(value)}"] if value else []
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return [f"{flag}={one}" for one in values]


def _wrapped(arguments: Sequence[str]) -> list[str]:
    lines = [arguments[0]]
    for argument in arguments[1:]:
        if len(lines[-1]) + len(argument) < _LINE_CHARACTERS:
            lines[-1] += f" {argument}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {argument}")
    return lines
