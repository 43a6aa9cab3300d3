"""MPI's C functions called by their addresses, in both libraries: an int a handle in one, a pointer in the other."""

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import launch

OPENMPI = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
PROGRAM = Path(__file__).parent / "c_functions_program.py"
# Sizes of a handle and of a status, as each library's mpi.h has them.
LIBRARIES = {"MPICH": (sys.executable, 4, 20), "Open MPI": (OPENMPI, 8, 24)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_two_ranks_exchange_bytes(tmp_path, library):
    python, handle_bytes, status_bytes = LIBRARIES[library]
    if python is None:
        pytest.skip("needs MPITRAIN_OPENMPI_PYTHON")
    done = launch([str(PROGRAM), str(tmp_path)], 2, python=python)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        facts = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (facts["handle_bytes"], facts["status_bytes"]) == (handle_bytes, status_bytes)
        assert (facts["received"], facts["beside"]) == ([2 - rank], [8 - rank])
        assert facts["outside"] == (rank == 1)
        assert facts["not found"] == [None, None]
        assert facts["failure"] == ["Exception", True]
