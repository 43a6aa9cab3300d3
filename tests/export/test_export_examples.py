"""Models that call an exported network: a toy ocean in Fortran under MPI, and a variational problem in C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import find_mpirun, need_program
from export_cases import compiled, emulator_of, networks, run_in, write_sources

PROGRAMS = Path(__file__).with_name("programs")
NETWORK = {"name": "mlp", "hidden_size": 16, "hidden_activation": "tanh", "output_activation": "sigmoid"}


def test_a_toy_ocean_conserves_heat_on_any_number_of_ranks(tmp_path: Path) -> None:
    need_program("gfortran")
    module, _ = write_sources(emulator_of(networks(**NETWORK)), "fortran", tmp_path)
    mpirun = Path(find_mpirun())
    objects = ["emulator.o", "ocean.o", "halo.o"]
    for command in (
        ["gfortran", "-std=f2008", "-O2", "-ffp-contract=off", "-c", module, str(PROGRAMS / "ocean.f90")],
        [str(mpirun.with_name("mpicc")), "-O2", "-c", str(PROGRAMS / "halo.c")],
        [str(mpirun.with_name("mpicc")), *objects, "-lgfortran", "-lm", "-o", "ocean"],
    ):
        done = run_in(tmp_path, *command)
        assert done.returncode == 0, done.stderr
    results = []
    for num_ranks in (1, 3):
        done = run_in(tmp_path, str(mpirun), "-np", str(num_ranks), str(tmp_path / "ocean"))
        assert done.returncode == 0, done.stderr
        before, after, spread = map(float, done.stdout.split(":")[1].split())
        assert abs(after - before) <= 1e-12 * abs(before)
        heat = np.fromfile(tmp_path / "heat.bin")
        assert 0.1 < spread < 10
        results.append(heat.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("compiler", ["g++"])
def test_a_variational_problem_is_solved_by_the_adjoint(compiler: str, tmp_path: Path) -> None:
    emulator = emulator_of(networks(**NETWORK, dtype=torch.float64))
    write_sources(emulator, "c++", tmp_path)
    compiled(compiler, tmp_path, [str(PROGRAMS / "variational.cpp")], "-O2", "-I", str(tmp_path))
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 0, done.stdout
