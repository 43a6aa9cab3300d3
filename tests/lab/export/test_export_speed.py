"""How fast exported networks are beside torch::jit and their own single calls: `pytest --full -s` prints tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from export_cases import MEAN, STD, emulator_of, networks, run_in, write_sources
from networks import network_settings

from mpitrain.inference.portable.network import portable_network_of
from mpitrain.models.build import build_model
from mpitrain.models.files.torchscript import save_model

PROGRAMS = Path(__file__).with_name("programs")
FAST = ("-O3", "-march=native")
FORTRAN = ("-ffp-contract=off", "-fno-trapping-math", "-fschedule-insns")
NAMES = {"c": "in_c", "c++": "in_cpp", "fortran": "in_fortran"}
ACTIVATIONS = ("tanh", "gelu", "relu", "sigmoid", "silu")
SAMPLES = 4608
# How many times as fast a batch must be as a single call for each of its samples.
LEAST_OF_BATCH = 1.5
LEAST_OF_AVX2 = {"relu": 1.3}
# How many times as fast as torch::jit each must be, at least.
LEAST = {
    ("one sample", "C"): 20, ("one sample", "C++"): 20, ("one sample", "Fortran"): 5,
    **{("its Jacobian", language): 10 for language in ("C", "C++", "Fortran")},
    **{("4608 samples", language): 1 for language in ("C", "C++", "Fortran")},
    **{("4608 Jacobians", language): 1 for language in ("C", "C++", "Fortran")},
}  # fmt: skip


def built(folder: Path, activation: str, *vectors: str) -> None:
    """Write a network as TorchScript and in three languages, and build the program that times them; see README.md."""
    settings = network_settings(name="mlp", hidden_size=64, hidden_layers=2, hidden_activation=activation)
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
        ["gfortran", "-std=f2008", *FAST, *FORTRAN, *vectors, "-c", "in_fortran.f90"],
        ["gfortran", "-std=f2008", *FAST, "-c", str(PROGRAMS / "speed_calls.f90"), "-o", "fortran_calls.o"],
        ["g++", "-std=c++17", *FAST, f"-I{folder}", "-c", str(PROGRAMS / "speed_calls.cpp")],
        ["g++", "-std=c++20", "-O2", *headers, "-c", str(PROGRAMS / "speed.cpp"), "-o", "speed.o"],
        ["g++", "speed.o", "speed_calls.o", "in_c.o", "in_fortran.o", "fortran_calls.o", f"-L{libraries / 'lib'}",
         f"-Wl,-rpath,{libraries / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-lgfortran", "-lm", "-o", "speed"],
    ):  # fmt: skip
        done = run_in(folder, *command)
        assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize(
    ("activation", "vectors"), [*((one, "") for one in ACTIVATIONS), ("tanh", "-mprefer-vector-width=512")]
)
def test_exported_sources_are_faster_than_torch_jit_and_batches_than_single_calls(
    activation: str, vectors: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("times programs for a minute: give --full")
    if vectors and " avx512f " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX-512")
    built(tmp_path, activation, *filter(None, [vectors]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = run_in(tmp_path, str(tmp_path / "speed"), "model.pt")
    print(f"\n{activation} {vectors}\n{done.stdout}")
    assert done.returncode == 0, "they do not compute the same network"
    ratios, times_us = {}, {}
    for line in done.stdout.splitlines():
        what, who, time_us, ratio = line.split(",")
        ratios[what, who], times_us[what, who] = float(ratio), float(time_us)
    too_slow = {key: ratios[key] for key, least in LEAST.items() if not ratios[key] >= least}
    assert not too_slow
    of_batch = {who: SAMPLES * times_us["one sample", who] / times_us[f"{SAMPLES} samples", who]
                for who in ("C", "C++", "Fortran")}  # fmt: skip
    print(of_batch)
    assert min(of_batch.values()) >= LEAST_OF_BATCH


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(7, 1), (22, 9)])
@pytest.mark.parametrize("architecture", ["x86-64-v3", "native"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_batches_beside_single_calls_and_the_peak_of_the_cpu(
    activation: str,
    architecture: str,
    num_inputs: int,
    num_outputs: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """In C. With AVX2 an activation is as many instructions in a batch as in a single call: only the products gain."""
    if not request.config.getoption("--full"):
        pytest.skip("times programs: give --full")
    cpu = Path("/proc/cpuinfo").read_text()
    if " avx2 " not in cpu:
        pytest.skip("this CPU has no AVX2")
    found = networks(
        1, num_outputs, name="mlp", hidden_size=64, hidden_layers=2, hidden_activation=activation, num_inputs=num_inputs
    )
    write_sources(emulator_of(found, "net"), "c", tmp_path)
    has_512 = architecture == "native" and " avx512f " in cpu
    flags = [
        "-std=gnu99",
        "-O3",
        f"-march={architecture}",
        "-ffp-contract=off",
        f"-DVECTOR_BYTES={64 if has_512 else 32}",
    ]
    sources = [str(PROGRAMS / "speed_of_batch.c"), "net.c"]
    built = run_in(tmp_path, "gcc", *flags, f"-I{tmp_path}", *sources, "-lm", "-o", "speed")
    assert built.returncode == 0, built.stderr
    done = run_in(tmp_path, str(tmp_path / "speed"))
    assert done.returncode == 0, "a batch has other bits than single calls"
    one_ns, batch_ns, ratio, products_ns = map(float, done.stdout.split())
    print(f"\n{num_inputs}-64-64-{num_outputs} {activation} {architecture}: {one_ns:.0f} ns, {batch_ns:.0f} in a batch,"
          f" {ratio} times; products at the peak {products_ns:.0f}")  # fmt: skip
    assert ratio >= (LEAST_OF_BATCH if has_512 else LEAST_OF_AVX2.get(activation, 1.0))
