"""Collecting from Fortran: each kind of number, statuses, and one file on one and three ranks, a model's flags."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import netCDF4
import pytest
from conftest import TIMEOUT_S, find_mpirun
from export_cases import FLANG, OF_OLDER_FLANG, OLDER_FLANG
from settings_files import VARIABLES, netcdf_flags

from mpitrain.datatools.collection import write_collection
from mpitrain.native.toolchain import find_next_to_python

PROGRAMS = Path(__file__).parent / "programs"


def build(folder: Path, compiler: str, *flags: str) -> None:
    write_collection(folder)
    (folder / "few.yaml").write_text(f"output: few.nc\nsamples: 200\n{VARIABLES}")
    fortran = ["mpitrain_collection_module.f90", str(PROGRAMS / "fortran_caller.f90")]
    subprocess.run([compiler, *flags, "-c", *fortran], check=True, cwd=folder)
    in_c = ["mpitrain_collection.c", str(PROGRAMS / "fortran_main.c")]
    subprocess.run([str(find_next_to_python("mpicc")), "-std=c99", "-O2", "-c", *in_c], check=True, cwd=folder)
    objects = sorted(str(path) for path in folder.glob("*.o"))
    libraries = netcdf_flags("--libs")
    mpi = subprocess.run(
        [str(find_next_to_python("mpicc")), "-show"], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()[1:]
    paths = [flag for flag in flags if flag.startswith("-L")]
    subprocess.run([compiler, *paths, *objects, "-o", "model", *mpi, *libraries, "-lm"], check=True, cwd=folder)


def run(folder: Path, num_ranks: int) -> tuple[list[str], bytes]:
    command = [find_mpirun(), "-np", str(num_ranks), "./model"]
    done = subprocess.run(command, check=True, cwd=folder, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    assert (folder / "again.nc").read_bytes() == (folder / "few.nc").read_bytes()
    return sorted(done.stdout.splitlines()), (folder / "few.nc").read_bytes()


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gfortran", ("-std=f2008", "-Wall", "-Werror", "-Wno-error=compare-reals")),
        ("gfortran", ("-Ofast", "-ffpe-trap=invalid,zero,overflow")),
        (FLANG, ("-O2",)),
        (OLDER_FLANG, ("-O2", OF_OLDER_FLANG)),
    ],
)
def test_one_file_on_one_and_three_ranks(tmp_path, compiler, flags):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    build(tmp_path, compiler, *flags)
    said, expected = run(tmp_path, 1)
    assert said == [
        "again 0", "closed -6", "memory T", "missing -4 missing.nc: cannot be read (No such file or directory)",
        "shape -2", "write 0",
    ]  # fmt: skip
    assert run(tmp_path, 3) == (said, expected)
    with netCDF4.Dataset(tmp_path / "few.nc") as file:
        assert file["shown"][:] == [8 * 240]
        assert file.dimensions["sample"].size == 200
        assert abs(file["c"][:] - file["a"][:] * file["b"][:]).max() < 1e-3
