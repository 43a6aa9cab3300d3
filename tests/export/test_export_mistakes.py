"""Mistakes in exported sources, and in how a model calls them: each is caught, by the self-test or by check_layout."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from export_cases import MEAN, NAMES, compiled, emulator_of, networks, run_in, write_sources

_LAYOUTS_IN_FORTRAN = """
program layouts
  use emulator
  implicit none
  real(wp) :: x(num_inputs, 5)
  integer :: finding, input, file, end_of_file
  open (newunit=file, file='batches.bin', access='stream', form='unformatted', status='old', action='read')
  do
    read (file, iostat=end_of_file) x
    if (end_of_file /= 0) exit
    call check_layout(x, finding, input)
    print '(i0, 1x, a)', input, describe(finding)
  end do
end program layouts
"""
# A statement of a C source, what stands there instead, and what the self-test must say of it.
PLANTED = {
    "a wrong adjoint": (
        "adjoint_one(members, &slopes, dy, dx);", "{0} dx[0] = -dx[0];", "dot-product test"),
    "a wrong tangent linear": (
        "tangent_one(members, &slopes, dx, dy);", "{0} dy[0] = 1.01 * dy[0];", "Taylor test: slope 2"),
    "a Jacobian of zeros": (
        "adjoint_one(members, &slopes, unit, jacobian + o * EMULATOR_INPUTS * 1);", "{0} jacobian[0] = 0;",
        "jacobian: the bits of mpitrain predict"),
    "layouts swapped": (
        "load_tile(EMULATOR_INPUTS, first, count, emulator_value_stride(layout, num_samples), "
        "emulator_sample_stride(layout, EMULATOR_INPUTS), x, x_tile);",
        "load_tile(EMULATOR_INPUTS, first, count, emulator_value_stride(!layout, num_samples), "
        "emulator_sample_stride(!layout, EMULATOR_INPUTS), x, x_tile);",
        "row-major batches: the bits of single samples"),
    "a range that is not looked at": (
        "status->num_outside += 1;", ";", "inputs outside the range of the training data are reported"),
    "units that are not looked at": (
        "return EMULATOR_IS_OTHER_UNITS;", ";", "check_layout recognises layouts, orders and units"),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_a_mistake_in_the_source_fails_the_self_test(planted: str, tmp_path: Path) -> None:
    """In double, where the dot-product test holds to 1e-14 and the Taylor remainder has slope 2."""
    statement, instead, failed = PLANTED[planted]
    sources = write_sources(emulator_of(networks(name="icenet", dtype=torch.float64)), "c", tmp_path)
    path = tmp_path / "emulator.c"
    text = path.read_text()
    assert statement in text
    path.write_text(text.replace(statement, instead.format(statement)))
    done = run_in(tmp_path, "gcc", *sources, "-lm", "-o", "program")
    assert done.returncode == 0, done.stderr
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 1
    assert f"FAILED  {failed}" in done.stdout


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_a_changed_weight_fails_the_self_test(language: str, tmp_path: Path) -> None:
    emulator = emulator_of(networks(name="icenet"))
    sources = write_sources(emulator, language, tmp_path)
    path = tmp_path / sources[0]
    marks = {"c": "/* weight_1 */ {\n    ", "fortran": "weight_1_r1(112) = [real(wp) ::"}
    head, _, tail = path.read_text().partition(marks[language])
    assert tail
    changed = {"c": "2 * (" + tail.replace(",", "),", 1), "fortran": "2*" + tail}
    path.write_text(head + marks[language] + changed[language])
    compiled({"c": "gcc", "fortran": "gfortran"}[language], tmp_path, sources, "-O1")
    done = run_in(tmp_path, str(tmp_path / "program"))
    assert done.returncode == 1
    assert "FAILED  forward: the bits of mpitrain predict" in done.stdout


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


@pytest.mark.parametrize("compiler", ["gcc", "gfortran"])
def test_names_and_units_of_any_text_can_be_compiled(compiler: str, tmp_path: Path) -> None:
    units = ("°C", "'quoted' \"twice\"", "two\nlines", "W m⁻² " * 30, "?" * 200, "*/ \\", "'" * 99)
    emulator = emulator_of(networks(name="icenet"), units=units)
    sources = write_sources(emulator, {"gcc": "c", "gfortran": "fortran"}[compiler], tmp_path)
    # As nvfortran reads texts without being asked to.
    compiled(compiler, tmp_path, sources, "-O0", *(["-fbackslash"] if compiler == "gfortran" else []))
    assert run_in(tmp_path, str(tmp_path / "program")).returncode == 0


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


def test_mistakes_of_layout_and_units_are_caught_in_fortran(library: ctypes.CDLL, tmp_path: Path) -> None:
    """Of what is in memory; the compiler and `check_layout` see the shapes too."""
    cases = {"none": (np.tile(probe_of(library), (5, 1)), "inputs first"), **mistakes(probe_of(library))}
    with (tmp_path / "batches.bin").open("wb") as file:
        for batch, _ in cases.values():
            file.write(np.ascontiguousarray(batch).tobytes()[: 5 * 7 * 4])
    sources = write_sources(emulator_of(networks(name="icenet")), "fortran", tmp_path)
    (tmp_path / "layouts.f90").write_text(_LAYOUTS_IN_FORTRAN)
    compiled("gfortran", tmp_path, [*sources[:-1], "layouts.f90"], "-O1")
    said = run_in(tmp_path, str(tmp_path / "program")).stdout.splitlines()
    for line, (name, (_, words)) in zip(said, cases.items(), strict=True):
        number, _, found = line.partition(" ")
        # It says how many inputs there are itself: layouts that are mixed up are inputs in another order.
        of_layout = name in ("columns for rows", "columns longer than the batch")
        assert found.startswith("the inputs are in another" if of_layout else words), name
        assert (int(number) > 0) == (name != "none")


def test_conversions_leave_rounding_that_is_forgiven(library: ctypes.CDLL) -> None:
    probe = probe_of(library)
    rounded = (probe + np.float32(273.15)) - np.float32(273.15)
    assert np.any(rounded != probe)
    assert finding(library, rounded, 1)[0].startswith("one sample")
