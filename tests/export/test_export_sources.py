"""Networks as source code: warnings, the self-tests, and the bits of `predict` from every compiler."""

from __future__ import annotations

import functools
import itertools
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_cases import (
    COMPILERS,
    FLANG,
    answers,
    compiled,
    emulator_of,
    networks,
    run_in,
    samples,
    write_driver,
    write_sources,
)

from mpitrain.export.source.emulator import Emulator
from mpitrain.inference.portable import with_numpy

WIDE: dict[str, Any] = {"name": "mlp", "hidden_size": 64, "hidden_layers": 2}
CASES: dict[str, dict[str, Any]] = {
    "icenet": {"name": "icenet"},
    **{name: {**WIDE, "hidden_activation": name} for name in ("none", "sigmoid", "tanh", "relu", "gelu")},
    "layer norm": {**WIDE, "hidden_activation": "silu", "layer_norm": True, "residual": True},
    "layer norm, ensemble": {
        **WIDE,
        "hidden_size": 5,
        "hidden_activation": "none",
        "layer_norm": True,
        "num_members": 3,
        "num_outputs": 2,
        "dtype": torch.float64,
    },
    "two outputs": {**WIDE, "hidden_activation": "tanh", "num_outputs": 2},
    "ensemble": {"name": "mlp", "hidden_size": 16, "hidden_activation": "gelu", "num_members": 8, "num_outputs": 2},
    "double": {**WIDE, "hidden_size": 13, "hidden_activation": "gelu", "dtype": torch.float64},
    "double ensemble": {"name": "icenet", "num_members": 3, "dtype": torch.float64},
    "one layer of relu": {"name": "mlp", "hidden_size": 3, "output_activation": "relu", "dtype": torch.float64},
}
IS_X86 = platform.machine() == "x86_64"
# A part of the matrix, in which each compiler, level, architecture and case comes.
SMALL = [
    ("gcc", "-O2", "-march=native", "tanh"), ("clang", "-O2", "-march=native", "relu"), ("gcc", "-O0", "", "icenet"),
    ("clang++", "-O0", "", "ensemble"), ("g++", "-O3", "-march=native", "double"),
    ("gfortran", "-O3", "-march=native", "two outputs"), ("gfortran", "-O0", "", "ensemble"),
    (FLANG, "-O1", "-march=native", "gelu"), ("g++", "-O2", "-march=native", "layer norm"),
    ("gfortran", "-O2", "-march=native", "layer norm"), ("clang", "-O2", "", "layer norm, ensemble"),
    ("gfortran", "-O0", "", "layer norm, ensemble"),
]  # fmt: skip
WHOLE = list(itertools.product(COMPILERS, ("-O0", "-O2", "-O3"), ("", "-march=native"), CASES))


@functools.cache
def case_of(name: str) -> tuple[Emulator, np.ndarray, list[bytes]]:
    """A network, 10,000 samples, and what `mpitrain predict` answers: in batches, one by one, and derivatives."""
    emulator = emulator_of(networks(**CASES[name]))
    inputs = samples(10_000, emulator.network.dtype, seed=5)
    pairs = [with_numpy.jacobian(network, inputs) for network in emulator.networks]
    outputs, jacobian = (np.stack(parts) for parts in zip(*pairs, strict=True))
    if emulator.is_ensemble:
        outputs, jacobian = (with_numpy.mean_of_members(one, emulator.network)[None] for one in (outputs, jacobian))
    return emulator, inputs, [outputs[0].tobytes(), outputs[0].tobytes(), jacobian[0].tobytes()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" in metafunc.fixturenames:
        chosen = WHOLE if metafunc.config.getoption("--full") else SMALL
        metafunc.parametrize("combination", chosen, ids=[" ".join(filter(None, one)) for one in chosen])


def test_every_compiler_gives_the_bits_of_predict(combination: tuple[str, str, str, str], tmp_path: Path) -> None:
    """Forward, one by one and in batches, and the Jacobian, of 10,000 samples; the self-test; no warning."""
    compiler, level, architecture, case = combination
    if compiler == FLANG and shutil.which(FLANG) is None:
        pytest.skip("no flang on the PATH (Debian: apt-get install flang-19)")
    language, flags = COMPILERS[compiler], [level, *filter(None, [architecture])]
    emulator, inputs, expected = case_of(case)
    *sources, self_test = write_sources(emulator, language, tmp_path)
    if sources:  # C++ has no source but headers
        compiled(compiler, tmp_path, sources, *flags, program="emulator.o")
    objects = ["emulator.o"] if sources else []
    compiled(compiler, tmp_path, [self_test, *objects], *flags)
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 11
    inputs.tofile(tmp_path / "x.bin")
    compiled(compiler, tmp_path, [write_driver(emulator, language, tmp_path), *objects], *flags, program="driver")
    assert answers(emulator, tmp_path, len(inputs)) == expected


@pytest.mark.skipif(not IS_X86, reason="names an instruction set of x86")
def test_a_fortran_compiler_that_fuses_is_found(tmp_path: Path) -> None:
    """Without -ffp-contract=off, on a CPU with fused multiply-adds."""
    if " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no fused multiply-add")
    sources = write_sources(emulator_of(networks(**CASES["tanh"])), "fortran", tmp_path)
    compiled("gfortran", tmp_path, sources, "-O2", "-mfma", "-ffp-contract=fast")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 1
    assert "FAILED  forward: the bits of mpitrain predict" in done.stdout
    assert "FAILED  check_arithmetic" in done.stdout


def test_c_refuses_fast_math_and_needs_no_flag(tmp_path: Path) -> None:
    sources = write_sources(emulator_of(networks(name="icenet")), "c", tmp_path)
    done = run_in(tmp_path, "gcc", "-c", "-ffast-math", sources[0])
    assert done.returncode == 1
    assert "compile without -ffast-math" in done.stderr
