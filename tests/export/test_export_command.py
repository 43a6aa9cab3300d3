"""`mpitrain export` to every format, of a real run: what it says and refuses, and that it looks at what it wrote."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE, launch, need_program, train
from export_cases import answers, compiled, emulator_of, networks, run_in, write_driver
from history_samples import read_samples
from numpy_network import answers_of

from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.errors import ConfigError, MissingDependencyError, OutputError, UserError
from mpitrain.export import programs
from mpitrain.export.command import run_export
from mpitrain.export.formats.built_in import C, Fortran
from mpitrain.export.request import ExportRequest
from mpitrain.export.source.fortran import fortran_files
from mpitrain.export.sources import _self_test
from mpitrain.models.files.stored_network import load_network

HISTORY = REFERENCE_CASE / "cice_history.nc"
# Calls what an export wrote as C: x.bin to mean.bin and, of several networks, spread.bin.
CALLS_C = """
#include <stdio.h>
#include "m.h"
int main(void) {
    FILE *in = fopen("x.bin", "rb"), *mean = fopen("mean.bin", "wb"), *spread = fopen("spread.bin", "wb");
    m_real x[7], y[1], s[1];
    while (fread(x, sizeof x, 1, in) == 1) {
        m_forward(x, y, SPREAD NULL);
        fwrite(y, sizeof y, 1, mean);
        fwrite(s, sizeof s, 1, spread);
    }
    return fclose(mean) || fclose(spread);
}
"""


def answers_of_c(path: Path, inputs: np.ndarray, is_ensemble: bool = False) -> list[np.ndarray]:
    """Compile an exported m.c with a program that calls it; return mean and spread, or the outputs alone (b, 1)."""
    folder = path.parent
    (folder / "calls.c").write_text(CALLS_C.replace("SPREAD", "s," if is_ensemble else ""))
    inputs.astype("f4").tofile(folder / "x.bin")
    done = run_in(folder, "gcc", "-std=c99", "-O2", "m.c", "calls.c", "-lm", "-o", "calls")
    assert done.returncode == 0, done.stderr
    assert run_in(folder, str(folder / "calls")).returncode == 0
    names = ("mean.bin", "spread.bin") if is_ensemble else ("mean.bin",)
    return [np.fromfile(folder / name, "f4").reshape(-1, 1) for name in names]


def answers_of_fortran(path: Path, inputs: np.ndarray) -> list[np.ndarray]:
    """Compile an exported emulator.f90 with a program that calls it; return its outputs (b, 1)."""
    inputs.astype("f4").tofile(path.with_name("x.bin"))
    emulator = emulator_of(networks(name="icenet"))  # of the same numbers of inputs and outputs
    driver = write_driver(emulator, "fortran", path.parent)
    compiled("gfortran", path.parent, ["emulator.f90", driver], "-O2", program="driver")
    outputs, singly, _ = answers(emulator, path.parent, len(inputs))
    assert outputs == singly
    return [np.frombuffer(outputs, "f4").reshape(-1, 1)]


def answers_of_torchscript(path: Path, inputs: np.ndarray, is_ensemble: bool = False) -> list[np.ndarray]:
    model = torch.jit.load(str(path))
    tensor = torch.from_numpy(inputs)
    with torch.no_grad():
        return [found.numpy() for found in ([model(tensor), model.spread(tensor)] if is_ensemble else [model(tensor)])]


def answers_of_pt2(path: Path, inputs: np.ndarray, is_ensemble: bool = False) -> list[np.ndarray]:
    with torch.no_grad():
        found: Any = torch.export.load(str(path)).module()(torch.from_numpy(inputs))
    return [one.numpy() for one in (found if is_ensemble else [found])]


def answers_of_onnx(path: Path, inputs: np.ndarray, is_ensemble: bool = False) -> list[np.ndarray]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {"inputs": inputs})
    assert len(found) == (2 if is_ensemble else 1)
    return found


# What a user's program makes of each kind of file, without this package: outputs, or mean and spread.
ANSWERS: dict[str, Callable[..., list[np.ndarray]]] = {
    "c": answers_of_c,
    "fortran": answers_of_fortran,
    "torchscript": answers_of_torchscript,
    "pt2": answers_of_pt2,
    "onnx": answers_of_onnx,
}
FILES = {"c": "m.c", "fortran": "emulator.f90", "torchscript": "m.pt", "pt2": "m.pt2", "onnx": "m.onnx"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members of an ensemble, one network of another size, of turned inputs, with layer norm, and of fields."""
    folder = tmp_path_factory.mktemp("runs")
    common = ("training.epochs=2", "model.name=mlp", "model.hidden_size=6")
    for name, *settings in (("a", *common), ("b", *common, "seed=7"), ("wide", *common, "model.hidden_size=9"),
                            ("turned", *common, f"variables.input_variables=[{','.join(reversed(CICE_INPUTS))}]"),
                            ("norm", *common, "model.layer_norm=true", "model.hidden_activation=silu",
                             "model.hidden_layers=2", "model.residual=true"),
                            ("cnn", "training.epochs=1", "model.name=cnn", "data.samples=fields")):  # fmt: skip
        done = train(None, folder / name, f"data.data_path={HISTORY}", *settings)
        assert done.returncode == 0, done.stderr
    return folder


def exported(run: Path, output: Path, kind: str, *members: Path) -> list[str]:
    lines: list[str] = []
    before = torch.get_num_threads()
    try:
        run_export(ExportRequest(run, output, format=kind, members=members), lines.append)
    finally:
        torch.set_num_threads(before)
    return lines


def test_a_model_in_fortran_predicts_the_bits_of_mpitrain_predict(runs: Path, tmp_path: Path) -> None:
    """Through the public commands, for every sample of the history."""
    need_program("gfortran")
    predict = ["predict", str(runs / "a"), "--output", "p.nc", "--layout", "rows"]
    commands = (predict, ["export", str(runs / "a"), "--format", "fortran"])
    for command in commands:
        done = launch(["-m", "mpitrain", *command], None, tmp_path)
        assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "self-test: 32 of 1513 samples of the run's data"
    assert second.startswith("emulator.f90, emulator_test.f90: ")
    assert third.startswith("checked: the self-test passes, compiled by ")
    inputs = read_samples(HISTORY, "north", True).inputs
    inputs.astype("f4").tofile(tmp_path / "x.bin")
    emulator = emulator_of(networks(name="icenet"))  # of the same numbers of inputs and outputs
    driver = write_driver(emulator, "fortran", tmp_path)
    compiled("gfortran", tmp_path, ["emulator.f90", driver], "-O2", program="driver")
    found = answers(emulator, tmp_path, len(inputs))
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as dataset:
        predicted = np.asarray(dataset["aice_h_predicted"][:])
        names = [name for name in dataset.variables if name.startswith("daice_h_d")]
        jacobian = np.stack([np.asarray(dataset[name][:]) for name in names], axis=1)
    assert jacobian.shape == (len(inputs), 7)
    assert found == [predicted.tobytes(), predicted.tobytes(), jacobian.tobytes()]
    text = (tmp_path / "emulator.f90").read_text()
    assert "hi_h    m" in text  # units of CICE
    assert max(map(len, text.splitlines())) <= 132


@pytest.mark.lab
def test_an_ensemble_of_runs_is_one_source(runs: Path, tmp_path: Path) -> None:
    lines = exported(runs / "a", tmp_path / "ice.c", "c", runs / "b")
    assert lines[-1].startswith("checked: the self-test passes")
    assert "2 networks, for which mean and spread are returned" in (tmp_path / "ice.h").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ice.c", "ice.h", "ice_test.c"]
    done = run_in(tmp_path, "gcc", "-std=c99", "ice.c", "ice_test.c", "-lm", "-o", "t")
    assert done.returncode == 0
    assert "2 member(s)" in run_in(tmp_path, str(tmp_path / "t")).stdout


@pytest.fixture(scope="module")
def ensemble(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an ensemble of two networks, as `mpitrain ensemble` leaves it."""
    folder = tmp_path_factory.mktemp("ensemble")
    for name, run in (("0000", "a"), ("0001", "b")):
        shutil.copytree(runs / run, folder / "members" / name)
    (folder / "ensemble.json").write_text('{"members": ["0000", "0001"]}')
    return folder


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ANSWERS)
def test_every_format_answers_what_numpy_makes_of_the_run_s_numbers(runs: Path, tmp_path: Path, kind: str) -> None:
    """Layer norm, SiLU and residuals, called as a user's program does: the line that says "checked" is not asked."""
    if kind == "fortran":
        need_program("gfortran")
    output, inputs = tmp_path / FILES[kind], read_samples(HISTORY, "north", True).inputs
    lines = exported(runs / "norm", output, kind)
    assert any(line.startswith("checked: ") for line in lines), lines
    (found,) = ANSWERS[kind](output, inputs)
    expected = answers_of(runs / "norm", inputs)
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.lab
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", sorted({*ANSWERS} - {"fortran"}))
def test_an_ensemble_answers_mean_and_spread_in_every_format(
    runs: Path, ensemble: Path, tmp_path: Path, kind: str
) -> None:
    output, inputs = tmp_path / FILES[kind], read_samples(HISTORY, "north", True).inputs
    lines = exported(ensemble, output, kind)
    assert any(line.startswith("checked: ") for line in lines)
    mean, spread = ANSWERS[kind](output, inputs, is_ensemble=True)
    values = np.stack([answers_of(runs / name, inputs) for name in ("a", "b")])
    np.testing.assert_allclose(mean, values.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(spread, values.std(axis=0, ddof=1), rtol=1e-4, atol=1e-6)
    assert spread.min() > 0


@pytest.mark.lab
@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_programs_of_torch_and_onnx_are_read_again(runs: Path, tmp_path: Path, kind: str) -> None:
    lines = exported(runs / "a", tmp_path / f"m.{kind}", kind)
    assert lines[1].startswith("checked: read again, it gives the same")
    assert lines[1].endswith("for 1513 samples of the run's data")
    assert [path.name for path in tmp_path.iterdir()] == [f"m.{kind}"]
    fields = tmp_path / f"cnn.{kind}"
    assert exported(runs / "cnn", fields, kind)[1].startswith("checked: read again, it gives the same")
    inputs = np.random.default_rng(0).normal(size=(3, 7, 90, 180)).astype("f4")
    with torch.no_grad():
        expected = load_network(runs / "cnn" / "model.pt").module(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(ANSWERS[kind](fields, inputs)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.lab
def test_a_program_that_answers_otherwise_is_not_believed(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = programs.run_pt2
    monkeypatch.setattr(programs, "run_pt2", lambda path, inputs: run(path, inputs) + 1e-3)
    with pytest.raises(OutputError, match=r"its outputs differ from the model's by up to 0\.001"):
        exported(runs / "a", tmp_path / "m.pt2", "pt2")


@pytest.mark.lab
def test_what_is_missing_for_onnx_is_named(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_ONNX_PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(MissingDependencyError, match=r"pip install 'mpitrain\[onnx\]'"):
        exported(runs / "a", tmp_path / "m.onnx", "onnx")


@pytest.mark.lab
@pytest.mark.parametrize(
    ("run", "members", "output", "kind", "message"),
    [
        (
            "cnn",
            (),
            "e.f90",
            "fortran",
            "model.name=cnn in float32 is no chain .* give --format torchscript, pt2 or onnx",
        ),
        ("a", ("wide",), "e.c", "c", "different sizes or activations; an ensemble needs one architecture"),
        (
            "a",
            ("cnn",),
            "m.pt",
            "torchscript",
            "has other inputs or outputs than .*; all members of an ensemble need the same",
        ),
        ("a", (), "e.cpp", "fortran", r"--format fortran writes .f90 or .F90 or .f08; give e.f90"),
        ("a", (), "sea-ice.f90", "fortran", "its stem names the module"),
        (
            "a",
            (),
            "Forward.f90",
            "fortran",
            "forward is a keyword of a language or a name in the module; give emulator.f90",
        ),
        ("a", ("turned",), "e.c", "c", "has other inputs or outputs than .*, in number, type, name, order or units"),
        ("a", (), "no/where.c", "c", "no/where.h: cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, members: tuple[str, ...], output: str,
    kind: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        exported(runs / run, Path(output), kind, *(runs / member for member in members))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.lab
def test_a_self_test_that_fails_is_an_error_and_no_compiler_is_said(tmp_path: Path) -> None:
    files = fortran_files(emulator_of(networks(name="icenet")))
    gfortran = need_program("gfortran")
    fortran = Fortran()
    assert _self_test(fortran, files, {"PATH": ""}).startswith("not checked: no fortran compiler on the PATH")
    text = files["emulator_test.f90"]
    first = text.index("::", text.index("all_outputs")) + len("::")
    other = "8" if text[first] != "8" else "7"
    spoilt = {**files, "emulator_test.f90": text[:first] + other + text[first + 1 :]}
    with pytest.raises(OutputError, match="self_test failed: FAILED  forward: the bits of mpitrain predict"):
        _self_test(fortran, spoilt, {**os.environ, "FC": gfortran})


def test_nothing_is_left_of_a_compiler_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, scratch = tmp_path / "cc", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    compiler.write_text("#!/bin/sh\ntouch $TMPDIR/left.s\nkill -9 $$\n")
    compiler.chmod(0o755)
    with pytest.raises(OutputError):
        _self_test(C(), {"emulator.c": ""}, {**os.environ, "TMPDIR": str(scratch), "CC": str(compiler)})
    assert not list(scratch.iterdir())


def test_sources_are_functions_of_the_description_alone() -> None:
    texts = [fortran_files(emulator_of(networks(name="icenet", num_members=2))) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(itertools.chain.from_iterable(texts))) == 2


@pytest.mark.lab
def test_a_format_of_a_user_is_a_function(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "components")
    lines = exported(runs / "a", tmp_path / "network.txt", "my_export:as_text")
    assert "written by my_export:as_text; not checked" in lines[-1]
    assert "network.layers.0.linear.weight (6, 7)" in (tmp_path / "network.txt").read_text()
    failed = r"^--format=my_export:fails: it failed \(RuntimeError: no such network\) at my_export.py:\d+; it is called"
    with pytest.raises(ConfigError, match=failed):
        exported(runs / "a", tmp_path / "failed.txt", "my_export:fails")
    with pytest.raises(UserError, match=r"^--format netcdf: unknown; give one of torchscript, saber, pt2, onnx, c, c"):
        exported(runs / "a", tmp_path / "network.txt", "netcdf")
