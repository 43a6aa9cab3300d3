"""`mpitrain launch`: from flags to a script that is printed, written or sent."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpitrain.durable_files import write_durably
from mpitrain.errors import OutputError, UserError
from mpitrain.launch.arguments import PRESETS, given_fields
from mpitrain.launch.checks import check_job, with_run_folder
from mpitrain.launch.job_request import JobRequest, make_job_request
from mpitrain.launch.local import render_local
from mpitrain.launch.manual import render_manual
from mpitrain.launch.pbs import render_pbs
from mpitrain.launch.slurm import render_slurm
from mpitrain.launch.submit import run_here, submit_command, submit_job

RENDERERS: dict[str, Callable[[JobRequest], str]] = {
    "slurm": render_slurm,
    "pbs": render_pbs,
    "local": render_local,
    "manual": render_manual,
}
_LARGEST_SWEEP = 1000


def run_launch(options: argparse.Namespace, config_path: Path | None, settings: Sequence[str]) -> int:
    """Check the request that `options` name; print, write or send its script; return the exit code.

    Raises UserError for a wrong request, LaunchError when the scheduler refuses it.
    """
    job = request_from(options, config_path, settings)
    is_sent_to_scheduler = options.submit and options.scheduler != "local"
    if is_sent_to_scheduler:
        submit_command(options.scheduler)  # before any other work: on a wrong host nothing is written
    if job.command == "train":
        job = with_run_folder(job)
        for line in check_job(job, is_sent=options.submit, scheduler=options.scheduler):
            _note(line)
    script = RENDERERS[options.scheduler](job)
    path = Path(options.output) if options.output else None
    if path is not None:
        _write(path, script)
    if is_sent_to_scheduler:
        print(submit_job(options.scheduler, script, path))  # noqa: T201
    elif options.submit:
        run_here(script)
    elif path is None:
        sys.stdout.write(script)
    return 0


def request_from(options: argparse.Namespace, config_path: Path | None, settings: Sequence[str]) -> JobRequest:
    """Return the checked request of the command line: the preset's values, and the flags' in their place."""
    hosts = tuple(options.hosts.split(",")) if options.hosts else ()
    fields: dict[str, Any] = {
        # a job may start with another PATH than this shell's, `sbatch --export=EPOCHS=200` does
        "python": sys.executable,
        **_sizes(
            PRESETS.get(options.preset, {}), {**({"nodes": len(hosts)} if hosts else {}), **given_fields(options)}
        ),
        "hosts": hosts,
        "settings": tuple(settings),
        "sweep": _sweep(options.sweep or ()),
    }
    if config_path is not None:
        fields["config_path"] = os.fspath(config_path)
    if options.run:
        fields["command"] = options.run
    return make_job_request(**fields)


def _sizes(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset with the flags in its place, and `-n` said in terms of hosts: it is spread over them."""
    fields = {**preset, **given}
    num_tasks, nodes = fields.get("num_tasks"), fields.get("nodes", 1)
    if num_tasks is None or num_tasks < 1 or nodes < 1:
        return fields
    if "tasks_per_node" not in given:
        fields["tasks_per_node"] = -(-num_tasks // nodes)
    if num_tasks == nodes * fields["tasks_per_node"]:
        del fields["num_tasks"]
    return fields


def _sweep(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return every combination of the values of `key=a,b` texts, the last key varying fastest."""
    choices = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not all(values.split(",")):
            raise UserError(
                f"--sweep {text}: give a key and its values, such as training.optimizer.learning_rate=1e-3,1e-4"
            )
        choices.append([f"{key}={value}" for value in values.split(",")])
    combinations = tuple(itertools.product(*choices)) if choices else ()
    if len(combinations) > _LARGEST_SWEEP:
        raise UserError(f"--sweep: {len(combinations)} combinations, at most {_LARGEST_SWEEP} in one array; give fewer")
    return combinations


def _write(path: Path, script: str) -> None:
    try:
        write_durably(path, script.encode())
        path.chmod(0o755)
    except OSError as error:
        raise OutputError(f"--output {path}: cannot be written ({error.strerror}); choose another file") from error


def _note(line: str) -> None:
    sys.stderr.write(f"note: {line}\n")
