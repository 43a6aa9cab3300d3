"""Rendezvous of ranks without MPI: the address and port of rank 0 for torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpitrain.cluster.host_list import expand_host_list, node_address
from mpitrain.cluster.launchers import is_set, read_claims
from mpitrain.errors import LaunchError


def master_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return host and port of rank 0, the same on all ranks; None for a single process, which needs no rendezvous.

    They are MASTER_ADDR and MASTER_PORT if set. Otherwise, in a Slurm step, the host is the first of its node list,
    on which the block and cyclic distributions put rank 0, or the first of SLURM_HOSTFILE for the arbitrary
    distribution, and the port is computed from the job id and step id. Raises LaunchError with the variable to set.
    """
    host = environ.get("MASTER_ADDR") or _slurm_first_host(environ)
    port = _read_port(environ) if is_set(environ, "MASTER_PORT") else _slurm_port(environ)
    if host is not None and port is not None:
        return host, port
    if all((claim.world_size or 1) == 1 for claim in read_claims(environ)):
        return None
    missing = [name for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", port)) if value is None]
    raise LaunchError(
        f"{' and '.join(missing)} not set: ranks without MPI need a rendezvous address; set MASTER_ADDR to rank 0's "
        "host and MASTER_PORT to a free port, or start with `torchrun --nproc-per-node 4 -m mpitrain`"
    )


def _slurm_first_host(environ: Mapping[str, str]) -> str | None:
    if not is_set(environ, "SLURM_STEP_NODELIST"):
        return None
    if environ.get("SLURM_DISTRIBUTION") == "arbitrary":
        return node_address(_first_of_host_file(environ.get("SLURM_HOSTFILE", "")))
    return node_address(expand_host_list(environ["SLURM_STEP_NODELIST"])[0])


def _first_of_host_file(path: str) -> str:
    # The arbitrary distribution may put rank 0 on any host, and the host lists in Slurm's variables are sorted.
    try:
        return expand_host_list(Path(path).read_text(encoding="utf-8").split()[0].split("*")[0])[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise LaunchError(
            f"SLURM_HOSTFILE={path}: cannot be read here, but it is needed to find rank 0 of an arbitrary "
            "distribution; set MASTER_ADDR to rank 0's host, or move the file to a file system that all nodes share"
        ) from error


def _slurm_port(environ: Mapping[str, str]) -> int | None:
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    if not is_set(environ, "SLURM_STEP_NODELIST") or not all(is_set(environ, name) for name in names):
        return None
    for name in names:
        if not environ[name].isdecimal():
            raise LaunchError(f"{name}={environ[name]}: not a number; set MASTER_PORT to a free port instead")
    # Steps on one node have different ids and so different ports. From 32768 on, Linux assigns ports to any process.
    return 20000 + (int(environ["SLURM_JOB_ID"]) * 31 + int(environ["SLURM_STEP_ID"])) % 12768


def _read_port(environ: Mapping[str, str]) -> int:
    text = environ["MASTER_PORT"]
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise LaunchError(f"MASTER_PORT={text}: not a port from 1 to 65535; set it to a free port of rank 0's host")
