"""Facts about one rank, sent to all ranks before the checks between them."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.cluster import detect_affinity, library_name, package_versions
from mpitrain.cluster.facts import COMPARED_VARIABLES, NEEDED_PACKAGES
from mpitrain.comm.mpi.library import read_mpi_library
from mpitrain.doctor.machine import available_memory_bytes

_HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class RankFacts:
    """Facts of one rank, of JSON's types; `versions` and `variables` map a name to a text, "" for missing."""

    rank: int
    host: str
    versions: dict[str, str]
    mpi_library: str
    mpi_path: str
    cores: list[int]
    variables: dict[str, str]
    memory_bytes: int | None


@dataclass(frozen=True)
class DeviceFacts:
    """Facts that need torch and a running MPI: the rank's GPU (None: CPU) and MPI's thread level."""

    gpu_uuid: str | None
    gpu_name: str
    thread_level: str | None
    problem: str = ""


def collect_facts(rank: int, environ: Mapping[str, str]) -> RankFacts:
    """Collect this rank's facts; loads the MPI library but does not start it."""
    library = read_mpi_library()
    return RankFacts(
        rank=rank,
        host=socket.gethostname(),
        versions=package_versions(NEEDED_PACKAGES),
        mpi_library=library_name(library.version) if library.version else f"none ({library.problem})",
        mpi_path=library.path,
        cores=sorted(detect_affinity()),
        variables={name: environ.get(name, "") for name in COMPARED_VARIABLES},
        memory_bytes=available_memory_bytes(),
    )


def collect_device_facts(requested: str, local_rank: int, thread_level: str | None) -> DeviceFacts:
    """Return the GPU that this rank would use with `compute.device=REQUESTED`. Loads torch."""
    import torch

    from mpitrain.comm.device import choose_device
    from mpitrain.errors import LaunchError

    try:
        device = choose_device(requested, local_rank)
    except LaunchError as error:
        return DeviceFacts(None, "", thread_level, str(error))
    if device.type != "cuda":
        return DeviceFacts(None, "", thread_level)
    return DeviceFacts(device.gpu, torch.cuda.get_device_properties(device).name, thread_level)


def file_fingerprint(path: Path) -> str:
    """Return a file's size and the SHA-256 of its first 64 KiB as text, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            digits = hashlib.sha256(file.read(_HEADER_BYTES)).hexdigest()[:12]
            return f"{os.fstat(file.fileno()).st_size} bytes, header {digits}"
    except OSError as error:
        return f"not readable ({error.strerror})"
