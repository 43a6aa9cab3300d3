"""Versions, machine and environment variables of one process, on which results and speed may depend."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.cluster.launchers import LAUNCHERS
from mpitrain.compiler import find_compiler
from mpitrain.errors import installed_version
from mpitrain.version import __version__

PACKAGES = ("torch", "numpy", "mpi4py", "netCDF4", "h5py", "safetensors", "pydantic")
"""The packages that compute or read data."""
NEEDED_PACKAGES = (*PACKAGES, "PyYAML", "rich", "matplotlib")
"""PACKAGES, and all others that some command needs."""
# Variables by which libraries choose their instructions; the C++ program's machine.cpp has those for CPUs.
_CHOOSING = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
COMPARED_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HDF5_USE_FILE_LOCKING",
)  # fmt: skip
"""Variables that must be the same on all ranks; otherwise ranks would compute or communicate differently."""


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python, mpitrain and the packages `names`. Imports none of them.

    Parameters
    ----------
    names : sequence of str
        Names of packages as pip knows them; default: PACKAGES, those that compute or read data.

    Returns
    -------
    dict of str to str
        Versions by name, "Python" and "mpitrain" first, then in the order of `names`; "" for a package that is not
        installed.
    """
    return {"Python": platform.python_version(), "mpitrain": __version__} | {
        name: installed_version(name) for name in names
    }


def machine_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a description of this machine: CPU, instruction set used by torch, system, MPI library, compiler."""
    torch: Any = sys.modules.get("torch")  # if it is not loaded, the run does not use it
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return {
        "cpu": str(detect_cpu()),
        "cpu_capability": "" if torch is None else torch.backends.cpu.get_cpu_capability(),
        "system": platform.platform(),
        "mpi_library": "" if mpi is None else mpi.Get_library_version().strip("\0\n ").splitlines()[0],
        "compiler": find_compiler("c++", environ) or "",
    }


def vendor_settings(environ: Mapping[str, str]) -> str:
    """Return the variables by which libraries choose instructions, as NAME=VALUE."""
    return _given(_CHOOSING, environ)


def variables_of_launch(environ: Mapping[str, str]) -> str:
    """Return the variables set by launchers or read by libraries, as NAME=VALUE."""
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes", "tasks_per_node")
    named = [getattr(launcher, field) for launcher in LAUNCHERS for field in fields]
    others = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "PBS_JOBID", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG")
    names = dict.fromkeys((*filter(None, named), *others, "MPI4PY_LIBMPI", *_CHOOSING, *COMPARED_VARIABLES))
    return _given(names, environ)


def _given(names: Iterable[str], environ: Mapping[str, str]) -> str:
    return " ".join(f"{name}={environ[name]}" for name in names if name in environ)
