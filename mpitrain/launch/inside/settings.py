"""The ranks' command: the request's settings, overridden by variables of the job's environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from mpitrain.config import shorten
from mpitrain.errors import UserError
from mpitrain.launch import grammar
from mpitrain.launch.inside.place import Place, checked
from mpitrain.launch.inside.run_folder import RunFolder
from mpitrain.launch.job_request import JobRequest

# Settings that a job reads from its environment: `sbatch --export=ALL,EPOCHS=200,LR=1e-4`, `qsub -v EPOCHS=200`.
OVERRIDES = (
    ("EPOCHS", "training.epochs", grammar.COUNT),
    ("LR", "training.optimizer.learning_rate", grammar.NUMBER),
    ("BATCH_SIZE", "training.batch_size", grammar.BATCH_SIZE),
    ("DATA", "data.data_path", grammar.PATH),
    ("SEED", "seed", grammar.COUNT_OR_ZERO),
    ("BACKEND", "compute.backend", grammar.BACKEND),
    ("NCCL_TIMEOUT", "distributed.timeout_s", grammar.COUNT),
)
# An ensemble chooses the number of ranks of a member: the batch size is that of all ranks together.
_OVERRIDES_OF_ENSEMBLES = (
    ("MEMBERS", "ensemble.members", grammar.COUNT),
    *((name, "training.global_batch_size" if name == "BATCH_SIZE" else key, form) for name, key, form in OVERRIDES),
)
# Variables that other trainers' job scripts read, and what to set instead.
OLDER_VARIABLES = {
    "TRAIN_SAMPLES": "set data.num_samples or data.max_patterns in the settings",
    "VAL_SAMPLES": "set data.validation_split in the settings",
    "DATA_TYPE": "set data.samples in the settings",
    "GPUS": "write the script with --gpus-per-node, or set NPROC_PER_NODE to start fewer ranks",
}
_OTHERS = ("OUTPUT", "RESUME", "LOG_LEVEL")


def ranks_command(job: JobRequest, place: Place, environ: Mapping[str, str], folder: RunFolder | None) -> list[str]:
    """Return the arguments of every rank's Python, without those of a restart; print settings from the environment.

    Raises UserError for a settings file that cannot be read and for a variable of a wrong form.
    """
    command = ["-m", "mpitrain", *job.command.split()]
    if job.config_path is not None:
        _check_readable(job.config_path)
        command.append(job.config_path)
    command += job.settings
    if folder is None:
        _answer_all(job, environ)
        return command
    if job.command == "train":
        level = checked(environ, "LOG_LEVEL", grammar.LOG_LEVEL, job.log_level)
        command += ["--log-level", level]
    command += _taken(job, environ)
    # quoted for YAML, so that a name like 123 stays a string
    command.append("output.model_dir='{}'".format(str(folder.path).replace("'", "''")))
    # last, so that the settings above cannot override those of the sweep
    return [*command, *(_of_sweep(job, place.index) if place.index is not None else ())]


def _check_readable(path: str) -> None:
    try:
        Path(path).open("rb").close()
    except OSError:
        raise UserError(
            f"{path}: cannot be opened from {Path.cwd()}; check that the file is readable, and start the job in the "
            "folder that this path is relative to"
        ) from None


def _taken(job: JobRequest, environ: Mapping[str, str]) -> list[str]:
    settings = []
    for name, key, form in OVERRIDES if job.command == "train" else _OVERRIDES_OF_ENSEMBLES:
        if environ.get(name):
            settings.append(f"{key}={checked(environ, name, form)}")
            # printed, because the variable may have been set for another purpose
            print(f"{name} of the environment: {settings[-1]}", flush=True)  # noqa: T201
    for name, advice in OLDER_VARIABLES.items():
        _answer(environ, name, advice)
    return settings


def _of_sweep(job: JobRequest, index: int) -> tuple[str, ...]:
    combinations = job.combinations
    if index >= len(combinations):
        raise UserError(
            f"job {index} of an array: this sweep has only {len(combinations)} combinations; submit the script again"
        )
    return combinations[index]


def _answer_all(job: JobRequest, environ: Mapping[str, str]) -> None:
    for name in (*(name for name, _, _ in OVERRIDES), *_OTHERS, *OLDER_VARIABLES):
        _answer(environ, name, f"mpitrain {job.command} does not train")


def _answer(environ: Mapping[str, str], name: str, advice: str) -> None:
    if environ.get(name):
        sys.stderr.write(f"note: {name}={shorten(environ[name])}: not read by this script; {advice}\n")
