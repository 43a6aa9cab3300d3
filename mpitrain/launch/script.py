"""The lines that the job scripts have in common; every value of the user's is quoted where it enters."""

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
    """Return a line for each row that has a value; a row's reason, where it has one, is a comment above it."""
    lines = []
    for reason, words in table:
        if words:
            lines += [f"# {reason}", f"{prefix}{words}"] if reason else [f"{prefix}{words}"]
    return lines


def exports(variables: Iterable[Variable]) -> list[str]:
    """Return the exports of the ranks' variables, each with its reason behind it."""
    return [f"export {one.name}={quote(one.value)}  # {one.reason}" for one in variables]


def whole(job: JobRequest, start: Sequence[str], family: MpiFamily, scheduler: str, fields: Sequence[str]) -> str:
    """Return a script: `start`, the ranks' variables for an MPI `family`, the interpreter, then `inside_job`."""
    python = [f"python={quote(job.python)}", *_PYTHON.splitlines()]
    lines = [*start, *exports(job_variables(job, family)), "", *python, *inside_job(job, scheduler, fields)]
    return "\n".join(lines) + "\n"


def inside_job(
    job: JobRequest, scheduler: str, fields: Sequence[str], words: Sequence[str] = (), replaces_shell: bool = True
) -> list[str]:
    """Return the one command of a script: it starts the ranks and stays until the job has ended.

    `fields` are those of the request that the scheduler's part inside of the job needs; they become the flags that
    name them, and then `words` (shell text) follow. The command replaces a job's shell, so that signals reach it.
    """
    values = {name: job.num_restarts if name == "restarts" else getattr(job, name) for name in fields}
    flags = [quote(flag) for name, value in values.items() for flag in _flags(name, value)]
    settings = [quote(word) for word in (job.config_path, *job.settings) if word is not None]
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


def _wrapped(words: Sequence[str]) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < _LINE_CHARACTERS:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {word}")
    return lines
