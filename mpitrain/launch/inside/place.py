"""Where a job runs: its name, hosts and array index, from environment variables that are checked, never executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import shorten
from mpitrain.errors import UserError
from mpitrain.launch.grammar import COUNT
from mpitrain.launch.job_request import JobRequest


@dataclass(frozen=True)
class Place:
    """A started job: `name` is the same after each restart; `hosts` are in the job's order, empty if unknown."""

    name: str
    num_nodes: int
    tasks_per_node: int
    hosts: tuple[str, ...] = ()
    index: int | None = None
    """Index in a job array."""
    node: int | None = None
    """Number of this host if each host is started separately, otherwise None."""


def checked(environ: Mapping[str, str], name: str, form: str, default: str | None = None) -> str:
    """Return a variable's value, or `default` if it is not set. Raises UserError unless it matches `form`."""
    value = environ.get(name) or default
    if value is None or re.fullmatch(form, value) is None:
        raise UserError(f"{name}={shorten(value or '')}: not of the form {form}; correct it or unset {name}")
    return value


def tasks_per_node(job: JobRequest, environ: Mapping[str, str]) -> int:
    """Return the number of ranks on each host: $NPROC_PER_NODE, otherwise the request's. Raises UserError."""
    return int(checked(environ, "NPROC_PER_NODE", COUNT, str(job.tasks_per_node)))


def gpus_of_host(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Return the number of the job's GPUs on this host: from Slurm, otherwise the visible ones, otherwise all."""
    per_node = re.findall(r"(?:^|[,:])([0-9]{1,4})(?=,|$)", environ.get("SLURM_GPUS_PER_NODE", ""))
    if per_node:  # `2`, or kinds and numbers, `a100:2,v100:1`
        return sum(map(int, per_node))
    on_node, visible = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get("CUDA_VISIBLE_DEVICES")
    if re.fullmatch(COUNT, on_node):
        return int(on_node)
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")])
    return len([path for path in devices.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])


def note_of_idle_gpus(place: Place, environ: Mapping[str, str]) -> str | None:
    """Return a notice if the job has more GPUs on this host than ranks: each rank uses one GPU."""
    gpus, ranks = gpus_of_host(environ), place.tasks_per_node
    if gpus <= ranks:
        return None
    return (
        f"the job has {gpus} GPUs on this host but starts only {ranks} rank{'s' * (ranks > 1)} on it, and each rank "
        f"uses one GPU; write the script with --gpus-per-node {gpus}, or set NPROC_PER_NODE={gpus}"
    )
