"""Networks as source code: warnings, the self-tests, and the bits of `predict` from every compiler."""

from __future__ import annotations

import functools
import itertools
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_cases import (
    COMPILERS,
    FLANG,
    OF_OLDER_FLANG,
    OLDER_FLANG,
    answers,
    compiled,
    emulator_of,
    networks,
    run_in,
    samples,
    write_driver,
    write_sources,
)

from mpitrain.export.source.emulator import Emulator, Variable, make_emulator
from mpitrain.export.source.fortran import fortran_files
from mpitrain.export.source.fortran_kinds import RESERVED
from mpitrain.inference.portable import with_numpy

PROGRAMS = Path(__file__).with_name("programs")
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
    assert done.stdout.count("ok ") == 13
    inputs.tofile(tmp_path / "x.bin")
    compiled(compiler, tmp_path, [write_driver(emulator, language, tmp_path), *objects], *flags, program="driver")
    assert answers(emulator, tmp_path, len(inputs)) == expected


_CHECK_IN_FORTRAN = """
program check
  use emulator
  implicit none
  print '(l1)', check_arithmetic()
end program check
"""


@pytest.mark.parametrize(
    ("case", "flags"),
    [("gelu", "-O0"), ("layer norm", "-O3 -march=native"), ("tanh", "-Ofast -march=native"),
     ("tanh", "-O2 -fdefault-real-8")],
)  # fmt: skip
def test_an_older_flang_gives_the_bits_or_check_arithmetic_says_no(case: str, flags: str, tmp_path: Path) -> None:
    """With -ffp-contract=off the bits must be there, whatever else a model is compiled with, save -Ofast."""
    if shutil.which(OLDER_FLANG) is None:
        pytest.skip("no flang 16 to 18 on the PATH (Debian: apt-get install flang-16)")
    emulator, inputs, expected = case_of(case)
    module, _ = write_sources(emulator, "fortran", tmp_path)
    (tmp_path / "check.f90").write_text(_CHECK_IN_FORTRAN)
    command = [OLDER_FLANG, OF_OLDER_FLANG, *flags.split(), "-ffp-contract=off", module]
    inputs.tofile(tmp_path / "x.bin")
    for program, source in (("check", "check.f90"), ("driver", write_driver(emulator, "fortran", tmp_path))):
        done = run_in(tmp_path, *command, source, "-o", program)
        assert done.returncode == 0, done.stderr
    says_yes = run_in(tmp_path, "./check").stdout.split() == ["T"]
    assert says_yes or "-Ofast" in flags
    assert (answers(emulator, tmp_path, len(inputs)) == expected) or not says_yes


@pytest.mark.skipif(not IS_X86, reason="names an instruction set of x86")
def test_a_fortran_compiler_that_fuses_is_found(tmp_path: Path) -> None:
    """Without -ffp-contract=off, on a CPU with fused multiply-adds."""
    if " fma " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no fused multiply-add")
    sources = write_sources(emulator_of(networks(**CASES["tanh"])), "fortran", tmp_path)
    compiled("gfortran", tmp_path, sources, "-O2", "-mfma", "-ffp-contract=fast")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 2
    assert "OTHER   forward: the bits of mpitrain predict: other bits, by" in done.stdout
    assert "FAILED" not in done.stdout
    assert "compile emulator.f90 with\n-ffp-contract=off" in done.stdout


@pytest.mark.parametrize(("compiler", "recipe"), [("gfortran", r"make:  (.* \+= .*)"), (FLANG, r"flang: (.* := .*)")])
def test_a_models_own_flags_are_told_and_the_recipe_mends_them(compiler: str, recipe: str, tmp_path: Path) -> None:
    """`-Ofast` breaks the sums that round: the self-test says so, and passes with the flags for this one file."""
    if shutil.which(compiler) is None or shutil.which("make") is None:
        pytest.skip(f"no {compiler}, or no make")
    module, self_test = write_sources(emulator_of(networks(**CASES["tanh"])), "fortran", tmp_path)
    of_model = ("-Ofast", "-fdefault-real-8", "-march=native")
    built = run_in(tmp_path, compiler, *of_model, module, self_test, "-o", "program")
    assert built.returncode == 0, built.stderr
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 1
    assert "compile emulator.f90 with -ffp-contract=off and without -Ofast or -ffast-math, and try again" in done.stdout
    found = re.search(recipe, (tmp_path / "emulator.f90").read_text())
    assert found
    of_make = f"FFLAGS = {' '.join(of_model)}\n{found[1]}\nemulator.o:\n\t{compiler} $(FFLAGS) -c {module}\n"
    (tmp_path / "Makefile").write_text(of_make)
    for command in (["make", "emulator.o"], [compiler, *of_model, "emulator.o", self_test, "-o", "program"]):
        built = run_in(tmp_path, *command)
        assert built.returncode == 0, built.stderr
    assert run_in(tmp_path, str(tmp_path / "program")).stdout.endswith("passed\n")


def test_the_self_test_runs_where_invalid_operations_stop_the_program(tmp_path: Path) -> None:
    sources = write_sources(emulator_of(networks(**CASES["tanh"])), "fortran", tmp_path)
    compiled("gfortran", tmp_path, sources, "-O2", "-ffp-contract=off", "-ffpe-trap=invalid,zero,overflow")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_probe_holds_values_that_a_model_can_hold() -> None:
    """Whole numbers where the data has no others, a constant as it is: a packing by the model keeps them."""
    inputs = samples(24, "float32")
    inputs[:, 2], inputs[:, 4] = np.arange(24) % 5, 0.0
    variables = [
        Variable(f"x{number}", "1", float(one.min()), float(one.max()), float(one.mean()), float(one.std() or 1.0))
        for number, one in enumerate(inputs.T)
    ]
    found = make_emulator("e", networks(**CASES["tanh"]), variables, [Variable("y", "1", 0, 1, 0.5, 0.3)], [], inputs)
    assert found.probe[2] == round(float(found.probe[2]))
    assert found.probe[4] == 0.0


def test_c_refuses_fast_math_and_needs_no_flag(tmp_path: Path) -> None:
    sources = write_sources(emulator_of(networks(name="icenet")), "c", tmp_path)
    done = run_in(tmp_path, "gcc", "-c", "-ffast-math", sources[0])
    assert done.returncode == 1
    assert "compile without -ffast-math" in done.stderr


_TWO_NETWORKS = """
program two
  use ice_prefixed
  use snow_prefixed
  implicit none
  real(ice_wp) :: x(ice_num_inputs), y(ice_num_outputs), z(snow_num_outputs)
  x = ice_probe
  call ice_forward(x, y)
  call snow_forward(x, z)
  print '(2l2)', ice_check_arithmetic() .and. snow_check_arithmetic(), abs(y(1) - z(1)) > 0
end program two
"""


def test_two_networks_live_in_one_program(tmp_path: Path) -> None:
    sources = []
    for name, case in (("ice", "icenet"), ("snow", "tanh")):
        sources += write_sources(emulator_of(networks(**CASES[case]), name), "fortran", tmp_path)[:1]
    (tmp_path / "two.f90").write_text(_TWO_NETWORKS)
    compiled("gfortran", tmp_path, [*sources, "two.f90"], "-O1")
    assert run_in(tmp_path, str(tmp_path / "program")).stdout.split() == ["T", "T"]


def test_an_ensembles_source_is_a_table(tmp_path: Path) -> None:
    """Eight members of 22-64-64-9 are at most 600 kB of Fortran."""
    found = networks(8, 9, name="mlp", hidden_size=64, hidden_layers=2, hidden_activation="tanh", num_inputs=22)
    (source, *_) = write_sources(emulator_of(found), "fortran", tmp_path)
    assert (tmp_path / source).stat().st_size <= 600_000


def test_arrays_of_double_precision_and_fields_by_their_names_give_the_same_bits(tmp_path: Path) -> None:
    emulator = emulator_of(networks(**{**CASES["two outputs"], "hidden_size": 16}))
    sources = write_sources(emulator, "fortran", tmp_path)
    compiled("gfortran", tmp_path, [sources[0], str(PROGRAMS / "real64.f90")], "-O2")
    found = run_in(tmp_path, str(tmp_path / "program")).stdout.split()
    assert [word for word in found if word in "TF"] == ["T"] * 8
    assert "forward_fields(inputs_first, tair, tsfc, sst, sss, hs, hi, sice, aice0, aice1, status, outside)" in (
        " ".join((tmp_path / "emulator.f90").read_text().replace("!", " ").split())
    )


def test_the_self_test_of_a_linear_network_passes_in_double(tmp_path: Path) -> None:
    emulator = emulator_of(networks(**{**CASES["none"], "hidden_size": 4}, dtype=torch.float64))
    for language, compiler in (("c", "gcc"), ("fortran", "gfortran")):
        compiled(compiler, tmp_path, write_sources(emulator, language, tmp_path), "-O1")
        assert run_in(tmp_path, str(tmp_path / "program")).stdout.endswith("passed\n")


def test_the_self_test_passes_where_inputs_are_constant(tmp_path: Path) -> None:
    inputs = samples(24, "float32")
    inputs[:, [0, 1, 6]] = 0.0
    variables = [
        Variable(f"x{number}", "1", float(one.min()), float(one.max()), float(one.mean()), float(one.std() or 1.0))
        for number, one in enumerate(inputs.T)
    ]
    found = networks(name="icenet")
    emulator = make_emulator("emulator", found, variables, [Variable("y", "1", 0, 1, 0.5, 0.3)], [], inputs)
    for language, compiler in (("c", "gcc"), ("fortran", "gfortran")):
        compiled(compiler, tmp_path, write_sources(emulator, language, tmp_path), "-O1")
        assert run_in(tmp_path, str(tmp_path / "program")).stdout.endswith("passed\n")


# Names of the language, of the module and of the procedures that take fields, in various cases.
HOSTILE = (
    "size real MIN max present wp x_tile y_tile num_inputs tile Layout status outside first n b s level found end if "
    "do data format result type function real64 forward_tile forward_fields_wp note_outside is_outside samples_first "
    "sum x integer len kind module f_size F_Size 2m µ _ a-b a.b a|b"
)


def variables_called(names: Sequence[str]) -> list[Variable]:
    return [Variable(name, "1", -3.0, 3.0, 0.0, 1.0) for name in names]


def emulator_with(names: Sequence[str], target: str = "min", **more: Any) -> Emulator:
    found = networks(name="mlp", hidden_size=3, hidden_layers=1, hidden_activation="tanh", num_inputs=len(names))
    inputs = np.random.default_rng(1).normal(size=(8, len(names))).astype("f4")
    emulator = make_emulator("emulator", found, variables_called(names), variables_called([target]), [], inputs)
    return replace(emulator, **more)


def check_fortran(emulator: Emulator, folder: Path, *flags: str) -> str:
    """Compile without a warning, run the self-test, and return the module's text, whose lines fit."""
    sources = write_sources(emulator, "fortran", folder)
    compiled("gfortran", folder, sources, "-std=f2008", "-Wall", "-Werror", "-O1", "-ffp-contract=off", *flags)
    assert run_in(folder, str(folder / "program")).stdout.endswith("passed\n")
    text = (folder / "emulator.f90").read_text()
    assert max(map(len, text.splitlines())) <= 132
    return text


def test_names_of_the_data_may_be_names_of_fortran(tmp_path: Path) -> None:
    text = check_fortran(emulator_with(HOSTILE.split()), tmp_path)
    assert "f_size, f_real, f_min, f_max, f_present, f_wp, f_x_tile" in " ".join(text.replace("&\n", "").split())


@pytest.mark.lab
def test_two_hundred_hostile_names_compile(tmp_path: Path) -> None:
    names = [*sorted(RESERVED)[:150], *(f"{'long_' * 20}{number}_{'name' * 8}" for number in range(50))]
    for first in range(0, len(names), 40):
        check_fortran(emulator_with(names[first : first + 40], "tendency_of_" * 9 + "x"), tmp_path)


def test_levels_of_a_long_name_are_one_argument(tmp_path: Path) -> None:
    name = "tendency_of_air_temperature_due_to_longwave_heating_assuming_clear_sky"
    text = check_fortran(emulator_with([f"{name}[plev={level}]" for level in (1000, 500, 100)]), tmp_path)
    assert f"(layout, {name[:50]}, &\n      f_min, status, outside)" in text
    assert f"size({name[:50]}, layout) /= 3" in text


def test_the_longest_name_of_a_module_gives_lines_that_fit(tmp_path: Path) -> None:
    texts = fortran_files(replace(emulator_with(["a"]), name="e" * 41))
    assert max(len(line) for text in texts.values() for line in text.splitlines()) <= 132


def test_kernels_may_call_what_takes_one_sample(tmp_path: Path) -> None:
    for flag in ("-fopenacc", "-fopenmp"):
        text = check_fortran(emulator_with(["a", "b"], is_gpu_callable=True), tmp_path, flag)
    marked = set(re.findall(r"pure [^\n]*?(?:subroutine|function) (\w+)\([^\n]*\n    !\$omp declare target\n", text))
    assert {"forward_one", "jacobian_one", "tanh_values", "dense_1_one", "normalise", "excess_of"} <= marked
    assert not any("batch" in name or "fields" in name for name in marked)
    for body in re.findall(r"!\$acc routine seq\n(.*?)\n  end ", text, flags=re.DOTALL):
        for shape in re.findall(r"real\(wp\) :: .*?\(([^()]*)\)", body):  # of locals: none is automatic
            assert re.fullmatch(r"[\d, ]*|num_\w+(, \w+)*", shape), shape
