"""Networks as source code: warnings, the self-tests, the bits of `predict`, and mistakes that are caught."""

from __future__ import annotations

import ctypes
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
    MEAN,
    NAMES,
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
    "two outputs": {**WIDE, "hidden_activation": "tanh", "num_outputs": 2},
    "ensemble": {"name": "mlp", "hidden_size": 16, "hidden_activation": "gelu", "num_members": 8, "num_outputs": 2},
    "double": {**WIDE, "hidden_size": 13, "hidden_activation": "gelu", "dtype": torch.float64},
    "double ensemble": {"name": "icenet", "num_members": 3, "dtype": torch.float64},
    "one layer of relu": {"name": "mlp", "hidden_size": 3, "output_activation": "relu", "dtype": torch.float64},
}
IS_X86 = platform.machine() == "x86_64"
# A part of the matrix, in which each compiler, level, architecture and case comes.
SMALL = [
    ("gcc", "-O2", "-march=native", "tanh"), ("clang", "-O2", "-march=native", "icenet"), ("gcc", "-O0", "", "relu"),
    ("clang++", "-O0", "", "ensemble"), ("g++", "-O3", "-march=native", "double"),
    ("gfortran", "-O3", "-march=native", "two outputs"), ("gfortran", "-O0", "", "ensemble"),
    (FLANG, "-O1", "-march=native", "gelu"),
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


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_a_changed_weight_fails_the_self_test(language: str, tmp_path: Path) -> None:
    emulator = emulator_of(networks(name="icenet"))
    sources = write_sources(emulator, language, tmp_path)
    path = tmp_path / sources[0]
    marks = {"c": "/* weight_1 */ {\n    ", "fortran": "weight_1_r1(16) = [ real(z'"}
    head, _, tail = path.read_text().partition(marks[language])
    assert tail
    changed = {"c": "2 * (" + tail.replace(",", "),", 1), "fortran": ("4" if tail[0] != "4" else "3") + tail[1:]}
    path.write_text(head + marks[language] + changed[language])
    compiled({"c": "gcc", "fortran": "gfortran"}[language], tmp_path, sources, "-O1")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 1
    assert "FAILED  forward: the bits of mpitrain predict" in done.stdout


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


class Variable(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("units", ctypes.c_char_p),
                *((key, ctypes.c_float) for key in ("minimum", "maximum", "mean", "std")))  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("library")
    sources = write_sources(emulator_of(networks(name="icenet"), "ice"), "c", folder)
    compiled("gcc", folder, sources[:1], "-O2", "-shared", "-fPIC", program="ice.so")
    found = ctypes.CDLL(str(folder / "ice.so"))
    found.ice_describe.restype = ctypes.c_char_p
    return found


def probe_of(library: ctypes.CDLL) -> np.ndarray:
    return np.array((ctypes.c_float * 7).in_dll(library, "ice_probe"), np.float32)


def finding(library: ctypes.CDLL, batch: np.ndarray, count: int) -> tuple[str, int]:
    """What check_layout says of memory, and the input that it names."""
    memory, wrong = np.ascontiguousarray(batch), ctypes.c_int(99)
    address = memory.ctypes.data_as(ctypes.c_void_p)
    found = library.ice_check_layout(ctypes.c_size_t(count), address, ctypes.byref(wrong))
    return library.ice_describe(found).decode(), wrong.value


def test_names_units_and_ranges_can_be_asked_for(library: ctypes.CDLL) -> None:
    table = (Variable * 7).in_dll(library, "ice_inputs")
    assert [one.name.decode() for one in table] == list(NAMES)
    assert [one.units.decode() for one in table] == ["C", "C", "C", "ppt", "m", "m", "ppt"]
    np.testing.assert_allclose([one.mean for one in table], MEAN, rtol=1e-6)
    assert all(one.minimum < one.mean < one.maximum for one in table)


def mistakes(probe: np.ndarray) -> dict[str, tuple[np.ndarray, str]]:
    """Ten mistakes in five samples of the probe, and what must be said of each."""
    rows = np.tile(probe, (5, 1))
    changed = {name: rows.copy() for name in ("kelvin", "fahrenheit", "cm", "kg/kg", "sign", "zero")}
    changed["kelvin"][:, 0] += np.float32(273.15)
    changed["fahrenheit"][:, 1] = rows[:, 1] * 1.8 + 32
    changed["cm"][:, 4] *= 100
    changed["kg/kg"][:, 3] /= 1000
    changed["sign"][:, 2] *= -1
    changed["zero"][:, 5] = 0
    order, units, value = "the inputs are in another order", "an input is in other units", "an input has another value"
    swapped = rows[:, [1, 0, 2, 3, 4, 5, 6]]
    padded = np.concatenate([rows.T, np.zeros((7, 3), np.float32)], axis=1)
    return {
        "columns for rows": (np.ascontiguousarray(rows.T), "column-major"),
        "two inputs swapped": (swapped, order),
        "inputs reversed": (rows[:, ::-1], order),
        "one value too far": (np.roll(rows.ravel(), -1), order),
        "columns longer than the batch": (padded, "an input"),
        "degrees Kelvin": (changed["kelvin"], units),
        "degrees Fahrenheit": (changed["fahrenheit"], units),
        "centimetres": (changed["cm"], units),
        "kg/kg": (changed["kg/kg"], units),
        "sign": (changed["sign"], units),
        "an input never set": (changed["zero"], value),
        "double precision": (rows.astype(np.float64), "an input"),
    }  # fmt: skip


@pytest.mark.parametrize("mistake", list(mistakes(np.ones(7, np.float32))))
def test_mistakes_of_layout_and_units_are_caught(library: ctypes.CDLL, mistake: str) -> None:
    probe = probe_of(library)
    right = np.tile(probe, (5, 1))
    assert finding(library, right, 5) == ("row-major: sample after sample", -1)
    batch, words = mistakes(probe)[mistake]
    said, number = finding(library, batch, 5)
    assert said.startswith(words), said
    assert (number >= 0) == (words != "column-major")


def test_conversions_leave_rounding_that_is_forgiven(library: ctypes.CDLL) -> None:
    probe = probe_of(library)
    rounded = (probe + np.float32(273.15)) - np.float32(273.15)
    assert np.any(rounded != probe)
    assert finding(library, rounded, 1)[0].startswith("one sample")
