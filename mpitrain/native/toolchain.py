"""Tools for building the C++ program; an error names a missing tool and how to install it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mpitrain.cluster import detect_cpu
from mpitrain.cluster.cpu.compiler_flags import build_identity
from mpitrain.cluster.cpu.identity import CpuIdentity
from mpitrain.errors import MissingDependencyError

_DEBIAN = "on Debian or Ubuntu: apt-get install {packages}; on a cluster: module load the site's"


@dataclass(frozen=True)
class Toolchain:
    """Programs for building and starting the C++ program; `mpi_compiler` and `mpirun` belong to one MPI library.

    `cpu`: the CPU for which the program is built.
    """

    cmake: str
    mpi_compiler: str
    mpirun: str
    python: str
    sources: Path
    cpu: CpuIdentity

    def identity(self) -> str:
        """Return a text that changes when a rebuild is needed for another compiler, MPI or torch."""
        compiler = subprocess.run([self.mpi_compiler, "--version"], capture_output=True, text=True, check=False).stdout
        torch_version = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "no torch"
        tools = [self.cmake, self.mpi_compiler, compiler.split("\n")[0], self.python, torch_version]
        # The CPU is part of it: a program built for one node may not run on an older one that shares the home folder.
        return "\n".join([*tools, build_identity(self.cpu)])


def find_toolchain() -> Toolchain:
    """Find CMake, MPI's compiler and launcher, and netCDF. Raises MissingDependencyError with what to install."""
    cmake = _find("cmake", "pip install cmake, or " + _DEBIAN.format(packages="cmake"))
    _find("c++", "a C++20 compiler; " + _DEBIAN.format(packages="g++ make"))
    mpi_compiler = find_next_to_python("mpicxx")
    if mpi_compiler is None:
        raise MissingDependencyError(
            "no mpicxx next to Python or on the PATH: the C++ program needs MPI's compiler; pip install "
            "'mpitrain[mpich]', "
            f"or {_DEBIAN.format(packages='libmpich-dev')}"
        )
    _check_netcdf()
    return Toolchain(cmake, mpi_compiler, find_mpirun(), sys.executable, find_sources(), detect_cpu())


def find_mpirun() -> str:
    """Find the launcher of the MPI library that mpi4py uses. Raises MissingDependencyError."""
    found = find_next_to_python("mpirun") or find_next_to_python("mpiexec")
    if found is None:
        raise MissingDependencyError(
            "no mpirun next to Python or on the PATH; pip install 'mpitrain[mpich]', or load the site's MPI"
        )
    return found


def find_next_to_python(name: str) -> str | None:
    """Return the program `name` next to this Python, otherwise the one on the PATH; None if there is none."""
    # The MPI library of a wheel takes precedence over the site's, so its launcher must too.
    found = Path(sys.executable).with_name(name)
    return str(found) if found.exists() else shutil.which(name)


def find_sources() -> Path:
    """Return the folder of the C++ sources: inside the installed package, or next to it in a checkout.

    Raises MissingDependencyError.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "cpp_reference", package.parent / "cpp_reference"):
        if (candidate / "CMakeLists.txt").exists():
            return candidate
    raise MissingDependencyError(
        f"{package}: the C++ sources (cpp_reference/) are missing; reinstall mpitrain from its repository"
    )


def _find(name: str, fix: str) -> str:
    found = find_next_to_python(name)
    if found is None:
        raise MissingDependencyError(f"no {name} on the PATH: the C++ program needs it; {fix}")
    return found


def _check_netcdf() -> None:
    pkg_config = _find("pkg-config", _DEBIAN.format(packages="pkg-config"))
    if subprocess.run([pkg_config, "--exists", "netcdf"], check=False, env=os.environ).returncode != 0:
        raise MissingDependencyError(
            "pkg-config does not find netCDF's C library: " + _DEBIAN.format(packages="libnetcdf-dev")
        )
