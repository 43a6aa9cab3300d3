"""How fast exported networks are beside torch::jit, 7-64-64-1 on one thread: `pytest --full -s` prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from export_cases import MEAN, STD, emulator_of, run_in, write_sources

from mpitrain.config.model import ModelSection
from mpitrain.inference.portable.network import portable_network_of
from mpitrain.models.build import build_model
from mpitrain.models.files.torchscript import save_model

PROGRAMS = Path(__file__).with_name("programs")
FAST = ("-O3", "-march=native")
NAMES = {"c": "in_c", "c++": "in_cpp", "fortran": "in_fortran"}
# How many times as fast as torch::jit each must be, at least.
LEAST = {
    ("one sample", "C"): 20, ("one sample", "C++"): 20, ("one sample", "Fortran"): 5,
    **{("its Jacobian", language): 10 for language in ("C", "C++", "Fortran")},
    **{("4096 samples", language): 1 for language in ("C", "C++", "Fortran")},
    **{("4096 Jacobians", language): 1 for language in ("C", "C++", "Fortran")},
}  # fmt: skip


def built(folder: Path, *vectors: str) -> None:
    """Write a network as TorchScript and in three languages, and build the program that times them; see README.md."""
    settings = ModelSection(name="mlp", hidden_size=64, hidden_layers=2, hidden_activation="tanh")
    model = build_model(settings, 7, 1, seed=0).eval()
    model.set_normalization(torch.from_numpy(MEAN), torch.from_numpy(STD), torch.ones(1), torch.full((1,), 3.0))
    save_model(model, folder / "model.pt")
    network = portable_network_of(model)
    assert network is not None
    for language, name in NAMES.items():
        write_sources(emulator_of([network], name), language, folder)
    libraries = Path(torch.__file__).parent
    headers = [f"-I{libraries / one}" for one in ("include", "include/torch/csrc/api/include")]
    for command in (
        ["gcc", "-std=c99", *FAST, "-c", "in_c.c"],
        ["gfortran", "-std=f2008", *FAST, "-ffp-contract=off", *vectors, "-c", "in_fortran.f90"],
        ["gfortran", "-std=f2008", *FAST, "-c", str(PROGRAMS / "speed_calls.f90"), "-o", "fortran_calls.o"],
        ["g++", "-std=c++17", *FAST, f"-I{folder}", "-c", str(PROGRAMS / "speed_calls.cpp")],
        ["g++", "-std=c++20", "-O2", *headers, "-c", str(PROGRAMS / "speed.cpp"), "-o", "speed.o"],
        ["g++", "speed.o", "speed_calls.o", "in_c.o", "in_fortran.o", "fortran_calls.o", f"-L{libraries / 'lib'}",
         f"-Wl,-rpath,{libraries / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-lgfortran", "-lm", "-o", "speed"],
    ):  # fmt: skip
        done = run_in(folder, *command)
        assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("vectors", ["", "-mprefer-vector-width=512"])
def test_exported_sources_are_faster_than_torch_jit(
    vectors: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("times programs for a minute: give --full")
    if vectors and " avx512f " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX-512")
    built(tmp_path, *filter(None, [vectors]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run_in(tmp_path, str(tmp_path / "speed"), "model.pt")
    print("\n" + done.stdout)
    assert done.returncode == 0, "they do not compute the same network"
    ratios = {}
    for line in done.stdout.splitlines():
        what, who, _, ratio = line.split(",")
        ratios[what, who] = float(ratio)
    too_slow = {key: ratios[key] for key, least in LEAST.items() if not ratios[key] >= least}
    assert not too_slow
