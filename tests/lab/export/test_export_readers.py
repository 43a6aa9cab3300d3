"""The readers of MOM6 and PUMAS, compiled as they are, answer with the bits of the files' own arithmetic.

`MPITRAIN_READERS` is a folder with MOM6's MOM_ANN.F90 and numerical_testing_type.F90, and module_neural_net.F90.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import netCDF4
import numpy as np
import pytest

import mpitrain
from mpitrain.export.command import run_export
from mpitrain.export.request import ExportRequest

STUBS = Path(__file__).parent / "mom6" / "mom_stubs.f90"
MOM6 = """
program driver
  use MOM_ANN, only : ANN_CS, ANN_init, ANN_apply
  type(ANN_CS) :: ann
  real :: x(7), y(2)
  call ANN_init(ann, 'n.nc')
  x = [(0.5*i, i=1,7)]
  call ANN_apply(x, y, ann)
  write (*, '(2z17)') y
end program
"""
PUMAS = """
program driver
  use module_neural_net, only : Dense, init_neural_net, neural_net_predict
  type(Dense), allocatable :: network(:)
  real(kind=8) :: x(1, 7), y(1, 2)
  call init_neural_net('n.nc', 1, network)
  x(1, :) = [(0.5d0*i, i=1,7)]
  call neural_net_predict(x, network, y)
  write (*, '(2z17)') y
end program
"""


@pytest.fixture
def readers() -> Path:
    folder = Path(os.environ.get("MPITRAIN_READERS", "none"))
    if not folder.is_dir():
        pytest.skip("no MPITRAIN_READERS")
    return folder


def exported(folder: Path, kind: str, activation: str) -> netCDF4.Dataset:
    random = np.random.default_rng(0)
    data = {f"x{number}": 3 * random.normal(size=400) + number for number in range(7)}
    data |= {"y": data["x0"] * data["x1"], "z": np.sin(data["x2"]) + data["x3"]}
    model = {"name": "mlp", "hidden_layers": 2, "hidden_size": 16, "hidden_activation": activation, "residual": False}
    names = [f"x{number}" for number in range(7)]
    run = mpitrain.train(
        data, inputs=names, targets=["y", "z"], epochs=2, output=folder / "run", settings={"model": model}
    )
    run_export(ExportRequest(run.path, folder / "n.nc", format=kind), lambda line: None)
    file = netCDF4.Dataset(str(folder / "n.nc"), "a")
    file.set_auto_mask(False)
    return file


def answered(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(folder / "driver")], cwd=folder, capture_output=True, text=True, check=False)


def built(folder: Path, text: str, *command: object) -> None:
    (folder / "driver.f90").write_text(text)
    flags = "-O2", "-ffp-contract=off", *map(str, command)
    done = subprocess.run(["gfortran", *flags, "-o", "driver"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def bits(values: np.ndarray) -> list[str]:
    return [f"{int(one):X}" for one in values.view("u8")]


def test_mom6_answers_with_the_bits_of_the_file_and_stops_at_a_changed_weight(readers: Path, tmp_path: Path) -> None:
    doubles = "-fdefault-real-8", "-fdefault-double-8"
    sources = STUBS, readers / "numerical_testing_type.F90", readers / "MOM_ANN.F90"
    built(tmp_path, MOM6, *doubles, *sources, "driver.f90", "-lnetcdf")
    with exported(tmp_path, "mom6", "relu") as file:
        values = (np.arange(1, 8) * 0.5 - file["input_means"][:]) * (1 / file["input_norms"][:])
        for number in range(3):
            sums = file[f"b{number}"][:].copy()
            for one, row in zip(values, file[f"A{number}"][:], strict=True):
                sums += one * row
            values = np.maximum(sums, 0) if number < 2 else sums
        values = values * file["output_norms"][:] + file["output_means"][:]
    done = answered(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == bits(values)
    with netCDF4.Dataset(str(tmp_path / "n.nc"), "a") as file:
        file["A2"][:] *= 1.01
    assert answered(tmp_path).returncode != 0


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_pumas_answers_as_the_file_says(readers: Path, tmp_path: Path, activation: str) -> None:
    if shutil.which("nf-config") is None:
        pytest.skip("no netCDF-Fortran (Debian: libnetcdff-dev, and libblas-dev)")
    reader = readers / "module_neural_net.F90"
    built(tmp_path, PUMAS, "-I/usr/include", reader, "driver.f90", "-lnetcdff", "-lblas")
    with exported(tmp_path, "pumas", activation) as file:
        values = np.arange(1, 8) * 0.5
        for name in ("dense_00", "dense_01", "dense_02"):
            sums = values @ file[f"{name}_weights"][:] + file[f"{name}_bias"][:]
            kind = file[f"{name}_weights"].activation
            values = {
                "linear": sums,
                "relu": np.maximum(sums, 0),
                "tanh": np.tanh(sums),
                "sigmoid": 1 / (1 + np.exp(-sums)),
            }[kind]
    done = answered(tmp_path)
    assert done.returncode == 0, done.stderr
    found = np.array([int(word, 16) for word in done.stdout.split()[-2:]], "u8").view("f8")
    np.testing.assert_allclose(found, values, rtol=1e-12)
