"""Models that call an exported network: a toy ocean in Fortran under MPI, and a variational problem in C++."""

from __future__ import annotations

import re
import shutil
from importlib import resources
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


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_outer_block_of_the_help_passes_its_dot_product_test(compiler: str, tmp_path: Path) -> None:
    text = resources.files("mpitrain.help").joinpath("export.md").read_text()
    (block,) = re.findall(r"```cpp\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "block.cpp").write_text(block)
    assert sum(bool(line.strip()) for line in block.partition("double dot")[0].splitlines()) <= 60
    found = networks(**{**NETWORK, "output_activation": "none"}, num_outputs=5, dtype=torch.float64)
    write_sources(emulator_of(found), "c++", tmp_path)
    compiled(compiler, tmp_path, ["block.cpp"], "-O2")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 0, done.stdout


_MAKE = """\
FFLAGS = -Ofast
self_test: emulator.o emulator_test.o
\tgfortran $(FFLAGS) $^ -o $@
emulator_test.o: emulator.o
%.o: %.f90
\tgfortran $(FFLAGS) -c $<
"""
_CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(model LANGUAGES Fortran)
set(CMAKE_Fortran_COMPILER_FORCED TRUE)
set(CMAKE_Fortran_FLAGS "-Ofast")
add_executable(self_test emulator.f90 emulator_test.f90)
"""


@pytest.mark.parametrize(
    ("language", "file", "model", "commands"),
    [
        ("make", "Makefile", _MAKE, [["make"]]),
        ("cmake", "CMakeLists.txt", _CMAKE, [["cmake", "-S", ".", "-B", "."], ["cmake", "--build", "."]]),
    ],
)
def test_a_recipe_of_the_help_gives_the_bits_in_a_model_of_other_flags(
    language: str, file: str, model: str, commands: list[list[str]], tmp_path: Path
) -> None:
    if shutil.which(language) is None:
        pytest.skip(f"no {language} on the PATH")
    text = resources.files("mpitrain.help").joinpath("export.md").read_text()
    (recipe,) = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    need_program("gfortran")
    module, _ = write_sources(emulator_of(networks(**NETWORK)), "fortran", tmp_path)
    assert recipe.strip() in re.sub(r"\n!   *(?! make:| CMake:)", "", (tmp_path / module).read_text())
    codes = []
    for lines in (model, model + recipe):
        (tmp_path / file).write_text(lines)
        for command in commands:
            done = run_in(tmp_path, *command, *(["-B"] if command == ["make"] else []))
            assert done.returncode == 0, done.stderr
        codes.append(run_in(tmp_path, str(tmp_path / "self_test")).returncode)
    assert codes[0] in (1, 2)  # without the recipe -Ofast makes wrong results, or other bits
    assert codes[1] == 0
