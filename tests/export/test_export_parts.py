"""Parts of what is exported, in process: ranges, names in Fortran, libraries in C, derivatives, a history file."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import netCDF4
import numpy as np
import pytest
import torch
from conftest import TIMEOUT_S
from export_cases import emulator_of, networks, samples, write_sources
from networks import build_icenet

from mpitrain.compiler import find_compiler
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.errors import OutputError
from mpitrain.export import cpp_check
from mpitrain.export.networks import LoadedRun
from mpitrain.export.programs import _compared
from mpitrain.export.saber_emulators import SaberNames, VerticalEmulator
from mpitrain.export.source.emulator import Variable, _printable
from mpitrain.export.source.fortran_kinds import field_names
from mpitrain.export.source.words import _table
from mpitrain.export.sources import _variables
from mpitrain.inference.portable import with_numpy
from mpitrain.inference.portable.tiles import blocks_of_sums
from mpitrain.models.files.description import ModelDescription
from mpitrain.train import RunFolder


def test_a_range_is_the_recorded_one_else_that_of_the_inputs_else_four_deviations() -> None:
    recorded = {"a": {"mean": 1.0, "std": 2.0, "minimum": -1.0, "maximum": 9.0}, "b": {"mean": 3.0, "std": 0.5}}
    known = _variables(["a", "b"], ["m", "1"], recorded, None, None)
    assert [(one.minimum, one.maximum, one.mean, one.std) for one in known] == [(-1, 9, 1, 2), (1, 5, 3, 0.5)]
    inputs = np.array([[0.0, 6.0], [0.0, -6.0]])
    found = _variables(["a", "b"], ["m", "1"], recorded, [(0.0, 2.0), (1.0, 4.0)], inputs)
    assert [(one.minimum, one.maximum, one.mean, one.std) for one in found] == [(-1, 9, 0, 1), (-6, 6, 2, 4)]


def test_numbers_of_a_table_end_below_each_other() -> None:
    wide = Variable("b", "m", -100.5, 2.0, 0.0, 1.0)
    _, *rows = _table("x({})", [Variable("a", "1", -1.0, 9.0, 0.5, 0.3), wide], 1)
    assert rows[0].index("-1") + len("-1") == rows[1].index("-100.5") + len("-100.5")


def test_names_that_are_one_in_fortran_are_numbered() -> None:
    names = ["SST.top", "sst top", "T[0]", "T[1]", "2m", "sst_top"]
    variables = [Variable(name, "", 0.0, 1.0, 0.0, 1.0) for name in names]
    given = [("sst_top", 1), ("sst_top_2", 1), ("t", 2), ("f_2m", 1), ("sst_top_3", 1)]
    outputs = [Variable(name, "", 0.0, 1.0, 0.0, 1.0) for name in ("T", "Size", "f_size")]
    assert field_names(variables, outputs) == (given, [("t_2", 1), ("f_size", 1), ("f_size_2", 1)])


def test_names_that_are_cut_keep_their_ends_and_stay_apart() -> None:
    long = "tendency_of_atmosphere_mass_content_of_secondary_particulate_organic_matter_due_to_"
    ends = ["net_chemical_production", "dry_deposition", "x[lev=0]", "x[lev=1]"]
    same = [f"{'a' * 40}{middle}{'b' * 40}" for middle in "12"]
    names = [*(long + end for end in ends), *same, "short\nname", "µ" * 61]
    found = [one.name for one in _printable([Variable(name, "", 0.0, 1.0, 0.0, 1.0) for name in names])]
    assert len(set(found)) == len(names)
    assert max(len(name.encode()) for name in found) <= 60
    assert all(name.endswith(end) for name, end in zip(found, [*ends, "#5", "#6", "short name"], strict=False))


def compile_sources(folder: Path, language: str, *words: str) -> None:
    """Compile with no warning allowed; nothing that is compiled is started."""
    compiler = find_compiler(language, os.environ)
    assert compiler is not None
    command = [compiler, "-Wall", "-Wextra", "-Werror", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize(("num_members", "dtype"), [(1, torch.float32), (1, torch.float64), (2, torch.float32)])
def test_batches_of_the_library_in_c_are_the_network_s_numbers(
    tmp_path: Path, num_members: int, dtype: torch.dtype
) -> None:
    settings = {"name": "mlp", "hidden_size": 3, "hidden_layers": 1, "hidden_activation": "tanh"}
    found = networks(num_members, num_outputs=2, dtype=dtype, **settings)
    write_sources(emulator_of(found), "c", tmp_path)
    compile_sources(tmp_path, "c", "-std=c99", "-fsyntax-only", "emulator_test.c")
    compile_sources(tmp_path, "c", "-std=c99", "-shared", "-fPIC", "emulator.c", "-o", "library.so", "-lm")
    inputs = samples(37, found[0].dtype)
    outputs, derivatives = np.zeros((37, 2), inputs.dtype), np.zeros((37, 2, 7), inputs.dtype)
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (inputs, outputs, derivatives)]
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    library.emulator_jacobian_batch(ctypes.c_size_t(37), 0, *arrays, *([None] if num_members > 1 else []))
    expected = [with_numpy.jacobian(network, inputs) for network in found]
    for answer, of_members in zip((outputs, derivatives), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(answer, np.mean(of_members, axis=0), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("num_members", [1, 2])
def test_the_self_test_in_cpp_fits_its_header(tmp_path: Path, num_members: int) -> None:
    (source,) = write_sources(emulator_of(networks(num_members, name="mlp", hidden_size=3)), "c++", tmp_path)
    compile_sources(tmp_path, "c++", "-std=c++17", "-c", "-o", "self_test.o", source)
    assert (tmp_path / "self_test.o").stat().st_size > 0


@pytest.mark.parametrize(("rows", "columns"), [((0, 2, 2), (3, 0, 1)), ((0, 1, 2, 2), (3, 3, 3, 3))])
def test_entries_of_a_jacobian_for_saber_are_those_of_all(rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    emulator = VerticalEmulator(network, torch.zeros(4), SaberNames(("t",), ("s",), (4,), (3,)))
    inputs, mask = torch.randn(5, 4, generator=generator), torch.tensor([[1.0], [0.0], [1.0], [1.0], [1.0]])
    found = emulator.jac_physical(inputs, mask, torch.tensor(rows), torch.tensor(columns))
    whole = torch.func.vmap(torch.func.jacrev(network))(inputs) * mask.unsqueeze(2)
    torch.testing.assert_close(found, whole[:, list(rows), list(columns)])


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_cpp_program_is_given_inputs_in_its_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_turned: bool
) -> None:
    """Of a network of its own order the file has points of its own; of another one, the network's inputs."""
    monkeypatch.setattr(cpp_check, "_tried", lambda path, model, pole, history_in, build: str(history_in(tmp_path)))
    names = ",".join(reversed(CICE_INPUTS) if is_turned else CICE_INPUTS)
    config = load_run_config(None, [f"variables.input_variables=[{names}]"]).config
    inputs = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    line = cpp_check.check_from_cpp(tmp_path / "m.pt", build_icenet(7, 4, "none", 0), config, None, inputs, False)
    with netCDF4.Dataset(str(tmp_path / "history.nc")) as file:
        assert (file[CICE_INPUTS[0]].size == 9) is is_turned
    assert ("order" in line) is is_turned


@pytest.mark.parametrize("num_out", [*range(1, 26), 64, 97])
def test_blocks_of_sums_hold_each_output_of_a_layer_once(num_out: int) -> None:
    blocks = [*blocks_of_sums(num_out)]
    assert [one for first, end, count in blocks for k in range(first, end, count) for one in range(k, k + count)] == [
        *range(num_out)
    ]


# Widths that leave over units beside those that take turns, and sums beside those of a block.
@pytest.mark.parametrize(
    ("units", "activation"), [(3, "gelu"), (5, "tanh"), (11, "sigmoid"), (18, "silu"), (9, "gelu")]
)
def test_a_batch_has_the_bits_of_single_calls_and_of_numpy(units: int, activation: str, tmp_path: Path) -> None:
    found = networks(1, num_outputs=units, name="mlp", hidden_size=units, hidden_activation=activation)
    write_sources(emulator_of(found), "c", tmp_path)
    compile_sources(tmp_path, "c", "-std=c99", "-shared", "-fPIC", "emulator.c", "-o", "library.so", "-lm")
    library = ctypes.CDLL(str(tmp_path / "library.so"))
    inputs = samples(37, found[0].dtype)
    batch, single = (np.zeros((37, units), inputs.dtype) for _ in range(2))
    library.emulator_forward_batch(ctypes.c_size_t(37), 0, *map(_address, (inputs, batch)), None)
    for row, outputs in zip(inputs, single, strict=True):
        library.emulator_forward(*map(_address, (row, outputs)), None)
    assert batch.tobytes() == single.tobytes()
    assert batch.tobytes() == np.ascontiguousarray(with_numpy.forward(found[0], inputs).outputs).tobytes()


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_runs_with_inputs_in_another_order_are_no_ensemble() -> None:
    model = SimpleNamespace(state_dict=lambda: {"input_mean": torch.zeros(2), "output_mean": torch.zeros(1)})
    of_names = [
        LoadedRun(
            RunFolder(Path("run")), RunConfig(), SimpleNamespace(model=model), None, ModelDescription(names, ("y",))
        )
        for names in (("a", "b"), ("b", "a"), ("a", "b"))
    ]
    assert of_names[0].variables == of_names[2].variables != of_names[1].variables


@pytest.mark.parametrize("error", [1e-3, torch.nan])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_program_that_answers_other_numbers_or_none_is_not_believed(error: float, num_samples: int) -> None:
    expected = torch.ones(3, 1)
    answer = lambda _, inputs: expected[: len(inputs)] + error * (len(inputs) == num_samples)  # noqa: E731
    with pytest.raises(OutputError, match=r"m\.pt2: its outputs differ from the model's"):
        _compared(Path("m.pt2"), answer, torch.zeros(3, 2), expected, "")


def test_a_program_that_answers_in_another_shape_is_not_believed() -> None:
    with pytest.raises(OutputError, match=r"m\.pt2: its outputs have other shapes than the model's"):
        _compared(Path("m.pt2"), lambda _, inputs: torch.ones(2, 2), torch.zeros(3, 2), torch.ones(3, 1), "")
