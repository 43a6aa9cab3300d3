"""Checks of a job request that are possible before the job is submitted."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from mpitrain.config import ComputeSection, EnsembleSection, OutputSection, RunConfig, load_run_config
from mpitrain.config.members import check_members
from mpitrain.errors import UserError
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.presets import describe_ranks
from mpitrain.launch.schedulers.scheduler import Scheduler

_MODEL_DIR = "output.model_dir"


def with_run_folder(job: JobRequest) -> JobRequest:
    """Return the request with `run_folder` set from its settings, so that the job script can look into that folder.

    Raises the errors of `load_run_config`.
    """
    folder = _load(job, job.settings).output.model_dir
    if any(_key(text) == _MODEL_DIR for text in job.sweep):
        raise UserError(f"--sweep {_MODEL_DIR}=...: each job of a sweep has a folder of its own already; omit it")
    rest = tuple(setting for setting in job.settings if _key(setting) != _MODEL_DIR)
    is_named = len(rest) < len(job.settings) or folder != OutputSection().model_dir
    return job.model_copy(update={"settings": rest, "run_folder": _one_line(folder) if is_named else None})


def check_job(job: JobRequest, *, is_sent: bool, scheduler: Scheduler) -> tuple[str, ...]:
    """Check the settings of every run that the job starts; return notices.

    Raises UserError for settings that do not load or cannot work in this job, and, if the job `is_sent` at once, for
    data that does not exist.
    """
    notices = _check_packed(job, is_sent)
    lacks_mpi = scheduler.lacks_mpi(job)
    for settings in job.combinations or ((),):
        config = _load(job, (*job.settings, *settings))
        if job.command == "ensemble":
            check_members(config)
            notices += _check_ensemble(job, config.ensemble or EnsembleSection(), lacks_mpi)
        _check_devices(job, config.compute)
        if config.semantics == "reference" and lacks_mpi:
            raise UserError(
                "semantics=reference needs MPI between the ranks; give --mpi pmi2 or pmix, not --scheduler manual"
            )
        notices += _check_data(config.data.entries, is_sent)
        notices += _size_notices(job, config.semantics, config.training.virtual_ranks)
    return tuple(dict.fromkeys(notices))


def _check_packed(job: JobRequest, is_sent: bool) -> list[str]:
    path = job.packed_environment
    if path is None or Path(path).is_file():
        return []
    problem = f"--packed-environment {path}: no such file on this host; create it with: tar -C ENVIRONMENT -cf {path} ."
    if is_sent:
        raise UserError(problem)
    return [problem]


def _check_ensemble(job: JobRequest, section: EnsembleSection, lacks_mpi: bool) -> list[str]:
    if job.total_tasks > 1 and lacks_mpi:
        raise UserError("an ensemble needs MPI between its ranks; give --mpi pmi2 or pmix, not --scheduler manual")
    return [describe_ranks(section, job.total_tasks)]


def _load(job: JobRequest, settings: tuple[str, ...]) -> RunConfig:
    return load_run_config(Path(job.config_path) if job.config_path is not None else None, settings).config


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _one_line(folder: str) -> str:
    if not folder.isprintable():
        raise UserError(f"{_MODEL_DIR}={folder!r}: must be one line of printable characters in a job script; rename it")
    return folder


def _check_devices(job: JobRequest, compute: ComputeSection) -> None:
    wanted = f"compute.device={compute.device}" if compute.device == "cuda" else None
    wanted = wanted or (f"compute.backend={compute.backend}" if compute.backend == "nccl" else None)
    if wanted and not job.gpus_per_node:
        raise UserError(f"{wanted}: the job requests no GPU; add --gpus-per-node {job.tasks_per_node}")


def _check_data(entries: Sequence[str], is_sent: bool) -> list[str]:
    missing = [entry for entry in entries if not Path(entry).exists() and not glob.glob(entry)]
    if not missing:
        return []
    problem = f"data.data_path={missing[0]}: no such file on this host"
    if is_sent:
        raise UserError(
            f"{problem}; correct it, or, if only the hosts of the job have it, print the script and submit it yourself"
        )
    return [f"{problem}; make sure that the hosts of the job have it"]


def _size_notices(job: JobRequest, semantics: str, virtual_ranks: int | None) -> list[str]:
    notices = []
    is_one_run = job.command == "train" and semantics == "standard"
    if virtual_ranks is not None and job.total_tasks > virtual_ranks and is_one_run:
        notices.append(
            f"{job.total_tasks} ranks and training.virtual_ranks={virtual_ranks}: results differ from "
            "those of fewer ranks; omit training.virtual_ranks, so that the results depend only on the batch size"
        )
    if job.gpus_per_node > job.tasks_per_node:
        idle = job.gpus_per_node - job.tasks_per_node
        notices.append(
            f"--gpus-per-node {job.gpus_per_node} with {job.tasks_per_node} ranks a host: idle GPUs per host: {idle}"
        )
    return notices
