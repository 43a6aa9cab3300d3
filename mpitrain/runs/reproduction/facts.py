"""What a run's bits and speed may depend on besides its settings, as one rank sees it: for its log and its record."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

from mpitrain.cluster.cores import detect_affinity
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.cluster.launchers import LAUNCHERS
from mpitrain.comm.mpi.library import mapped_library_path
from mpitrain.comm.ranks import Ranks
from mpitrain.compiler import find_cpp_compiler
from mpitrain.errors import installed_version
from mpitrain.version import __version__

PACKAGES = ("torch", "numpy", "mpi4py", "netCDF4", "h5py", "safetensors", "pydantic")
# With these libraries choose their instructions,
_CHOOSING = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
# and with these their threads and their network.
_VARIABLES = (
    *_CHOOSING, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "MPI4PY_LIBMPI", "HDF5_USE_FILE_LOCKING",
)  # fmt: skip


def package_versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of those that compute or read; "" where one is missing."""
    return {"Python": platform.python_version(), "mpitrain": __version__} | {
        name: installed_version(name) for name in PACKAGES
    }


def machine_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what this machine is: its CPU, what torch uses of it, system, MPI library, compiler."""
    torch: Any = sys.modules.get("torch")  # a run that does not load it computes nothing with it
    return {
        "cpu": str(detect_cpu()),
        "cpu_capability": "" if torch is None else torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "mpi_library": mpi_library_version(),
        "compiler": find_cpp_compiler(environ) or "",
    }


def vendor_settings(environ: Mapping[str, str]) -> str:
    """Return the variables that choose instructions or threads, as NAME=VALUE."""
    return " ".join(f"{name}={environ[name]}" for name in _CHOOSING if name in environ)


def rank_facts(ranks: Ranks, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what this rank is and who started it; the variables are those that launchers and libraries read."""
    names = [*_launcher_variables(), *_VARIABLES]
    return {
        "launcher": f"{ranks.info.source}, transport {ranks.transport}, backend {ranks.backend or '-'}",
        "place": f"rank {ranks.rank} of {ranks.world_size}, {ranks.local_rank} of {ranks.local_world_size} on node "
        f"{ranks.node_rank} of {ranks.num_nodes} ({ranks.host})",
        "device": f"{ranks.device}, {ranks.num_threads} threads, reduction {ranks.reduction}",
        "cores": f"{sorted(detect_affinity())}, {ranks.node_cores} of the node",
        "mpi_library_path": mapped_library_path(),
        "variables": " ".join(f"{name}={environ[name]}" for name in dict.fromkeys(names) if name in environ),
    }


def mpi_library_version() -> str:
    """Return the first line of the loaded MPI library's version; "" where none is loaded."""
    mpi = sys.modules.get("mpi4py.MPI")
    return "" if mpi is None else mpi.Get_library_version().strip("\0\n ").splitlines()[0]


def _launcher_variables() -> list[str]:
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes", "tasks_per_node")
    named = [getattr(launcher, field) for launcher in LAUNCHERS for field in fields]
    return [name for name in named if name] + ["MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "PBS_JOBID"]
