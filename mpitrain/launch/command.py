"""`mpitrain launch`: makes a job script from command-line options, and prints, writes or submits it."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mpitrain.cluster import detect_usable_core_count, note_on_stderr
from mpitrain.config import EnsembleSection, load_run_config
from mpitrain.durable_files import check_output, write_durably
from mpitrain.errors import LaunchError, UserError, writing
from mpitrain.launch.checks import check_job, with_run_folder
from mpitrain.launch.inside_job import run_inside_job
from mpitrain.launch.job_request import JobRequest, make_job_request
from mpitrain.launch.presets import PRESETS, ranks_for
from mpitrain.launch.schedulers.scheduler import Scheduler
from mpitrain.launch.schedulers.table import SCHEDULERS, find_scheduler

_TIMEOUT_S = 120.0


def run_launch(
    options: argparse.Namespace, given: Mapping[str, Any], config_path: Path | None, settings: Sequence[str]
) -> int:
    """Check the request in `options` and `given`; print, write or submit its script; return the exit code.

    Raises UserError for a wrong request, LaunchError if the scheduler refuses it.
    """
    if options.inside_job:
        return run_inside_job(request_from(options, given, config_path, settings), SCHEDULERS[options.scheduler])
    options.scheduler, found = _choose_scheduler(options)
    scheduler = SCHEDULERS[options.scheduler]
    job = request_from(options, given, config_path, settings)
    is_sent_to_scheduler = options.submit and options.scheduler != "local"
    if is_sent_to_scheduler:
        submit_command(options.scheduler)  # first: without a submit command on this host no file is written
    job = _checked(job, scheduler, options.submit)
    note_on_stderr(*_size_notes(job, given, options.preset))
    script = scheduler.render(job)
    path = Path(options.output) if options.output else None
    if path is not None:
        _write(path, script, [config_path] if config_path else [], options.overwrite)
    if is_sent_to_scheduler:
        print(submit_job(options.scheduler, script, path))  # noqa: T201
    elif options.submit:
        run_here(script)
    elif path is None:
        sys.stdout.write(script)
    if found:  # last: a refused request prints its error message alone
        note_on_stderr(found)
    return 0


def _checked(job: JobRequest, scheduler: Scheduler, is_sent: bool) -> JobRequest:
    """Return the request with its run folder; print notices. Raises UserError for a request that cannot work."""
    if obstacle := scheduler.obstacle(job):
        raise UserError(obstacle)
    if not job.trains:
        return job
    job = with_run_folder(job)
    note_on_stderr(*check_job(job, is_sent=is_sent, scheduler=scheduler))
    return job


def _choose_scheduler(options: argparse.Namespace) -> tuple[str, str]:
    """Return the requested scheduler, otherwise that of this host with a line that gives the reason.

    Raises UserError if none can be chosen.
    """
    if options.scheduler:
        return options.scheduler, ""
    others = "--scheduler selects another"
    if options.hosts:
        return "manual", f"writing commands for each host, because of --hosts; {others}"
    found = find_scheduler(os.environ, shutil.which)
    if found is None:
        if options.submit:
            raise UserError(
                "--submit: no scheduler found on this host (sbatch, qsub); --scheduler local runs the job here"
            )
        return "slurm", f"writing a Slurm script, because no scheduler was found on this host; {others}"
    name, because = found
    if name not in SCHEDULERS:
        raise UserError(
            f"{name} ({because}): this scheduler is not supported; give --scheduler slurm, pbs, local or "
            "manual, or start mpirun in a job script of your own"
        )
    return name, f"writing {SCHEDULERS[name].title}, because {because}; {others}"


def request_from(
    options: argparse.Namespace, given: Mapping[str, Any], config_path: Path | None, settings: Sequence[str]
) -> JobRequest:
    """Return the checked request of the command line: the preset's values, overridden by the options given."""
    hosts = tuple(options.hosts.split(",")) if options.hosts else ()
    is_ensemble = options.run == "ensemble"
    if is_ensemble:  # one job trains all combinations
        settings = (*settings, *_grid(options.sweep or ()))
        given = {**_size_of_ensemble(options, given, config_path, settings), **given}
    fields: dict[str, Any] = {
        # an absolute path: a job may start with a PATH other than this shell's, as with `sbatch --export=EPOCHS=200`
        "python": sys.executable,
        **_sizes(PRESETS.get(options.preset, {}), {**({"nodes": len(hosts)} if hosts else {}), **given}),
        "hosts": hosts,
        "settings": tuple(settings),
        "secret": "" if options.inside_job or len(hosts) < 2 else secrets.token_hex(16),
        "sweep": () if is_ensemble else tuple(options.sweep or ()),
    }
    if config_path is not None:
        fields["config_path"] = os.fspath(config_path)
    if options.run:
        fields["command"] = options.run
    return make_job_request(**fields)


def _sizes(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset overridden by `given`, with one rank for each GPU and the ranks of `-n` spread over hosts."""
    fields = {**preset, **given}
    num_tasks, nodes, num_gpus = fields.get("num_tasks"), fields.get("nodes", 1), fields.get("gpus_per_node", 0)
    if num_tasks is None and given.get("gpus_per_node", 0) > 0 and "tasks_per_node" not in given:
        fields["tasks_per_node"] = num_gpus
    if num_tasks is None or num_tasks < 1 or nodes < 1:
        return fields
    if "tasks_per_node" not in given:
        if "nodes" not in given and num_gpus > 0:
            fields["nodes"] = nodes = max(nodes, -(-num_tasks // num_gpus))
        fields["tasks_per_node"] = -(-num_tasks // nodes)
    if num_tasks == nodes * fields["tasks_per_node"]:
        del fields["num_tasks"]
    return fields


def _size_notes(job: JobRequest, given: Mapping[str, Any], preset: str | None) -> list[str]:
    """Return a notice if the number of hosts was computed from the number of ranks."""
    if "num_tasks" not in given or "nodes" in given or job.nodes == PRESETS.get(preset or "", {}).get("nodes", 1):
        return []
    return [f"{job.total_tasks} ranks with a GPU each: {job.nodes} nodes of {job.gpus_per_node}"]


def _size_of_ensemble(
    options: argparse.Namespace, given: Mapping[str, Any], config_path: Path | None, settings: Sequence[str]
) -> dict[str, Any]:
    """Return the default size of an ensemble: the fewest ranks that finish as soon as one rank on each core would.

    Empty if the user gave a size.
    """
    if {"nodes", "tasks_per_node", "num_tasks", "gpus_per_node"} & set(given) or options.preset or options.hosts:
        return {}
    section = load_run_config(config_path, settings).config.ensemble or EnsembleSection()
    return {"tasks_per_node": ranks_for(section, detect_usable_core_count())}


def _grid(texts: Sequence[str]) -> list[str]:
    """Return `key=a,b` texts as settings of an ensemble. Raises UserError for other texts."""
    make_job_request(sweep=tuple(texts))
    return [f"ensemble.grid.{key}=[{values}]" for key, _, values in (text.partition("=") for text in texts)]


def _write(path: Path, script: str, inputs: Sequence[Path], overwrite: bool) -> None:
    with writing(f"--output {path}", "choose another file"):
        check_output(path, "ritten by `mpitrain launch`", inputs, overwrite)
        write_durably(path, script.encode())
        path.chmod(0o755)


def submit_command(scheduler: str) -> tuple[str, ...]:
    """Return the command that submits a script of `scheduler`. Raises UserError if this host does not have it."""
    command = SCHEDULERS[scheduler].submit_arguments
    if not command:
        raise UserError(f"--scheduler {scheduler}: --submit needs slurm, pbs or local; copy the commands to each host")
    if shutil.which(command[0]) is None:
        raise UserError(
            f"{command[0]}: not found on the PATH; submit the job from a login node, or write it with --output"
        )
    return command


def submit_job(scheduler: str, script: str, path: Path | None) -> str:
    """Submit `script`, from its file `path` if it was written to one, and return the job's id.

    Raises UserError if the scheduler's command is missing, LaunchError with the first line of its answer if it refuses.
    """
    command = submit_command(scheduler)
    try:
        # Without a path by standard input: a crash leaves no temporary file behind.
        done = subprocess.run(
            [*command, *([str(path)] if path else [])],
            input=None if path else script,
            stdin=subprocess.DEVNULL if path else None,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]}: no answer in {_TIMEOUT_S:.0f} s; check whether the job is queued") from None
    if done.returncode != 0:
        reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[0]
        raise LaunchError(f"{command[0]} refused the job (exit code {done.returncode}): {reason}")
    return done.stdout.strip().partition(";")[0]


def run_here(script: str) -> NoReturn:
    """Replace this process by the script, which then has its exit code and its signals. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp("bash", ["bash", "-c", script])  # noqa: S606, S607
