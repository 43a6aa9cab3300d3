"""`mpitrain export --format saber`: names, levels, masked nodes, derivatives, and the calls of SABER's C++ code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
import yaml
from conftest import REFERENCE_CASE, TIMEOUT_S, launch, train
from torch import nn

from mpitrain.errors import UserError
from mpitrain.export.command import run_export
from mpitrain.export.request import ExportRequest
from mpitrain.export.saber import _blocks
from mpitrain.export.saber_emulators import SaberMask, SaberNames, emulator_of
from mpitrain.models.jacobian import input_jacobian

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")]
HISTORY = REFERENCE_CASE / "cice_history.nc"
NUM_LEVELS = 6
SURFACE_NAMES = {
    "aice_h": "sea_ice_area_fraction",
    "sst_h": "sea_water_potential_temperature",
    "sss_h": "sea_water_salinity",
    "hi_h": "sea_ice_thickness",
    "hs_h": "sea_ice_snow_thickness",
}
LOADER = Path(__file__).parent / "programs" / "saber_loader.cpp"


def write_columns(path: Path) -> Path:
    """Salinity as a function of the column of temperature, of 400 profiles, with standard names."""
    random = np.random.default_rng(2)
    temperature = 10 + np.cumsum(random.normal(size=(400, NUM_LEVELS)), axis=1)
    salinity = 35 + 0.1 * np.tanh(temperature - 10) + 0.02 * temperature[:, ::-1]
    with netCDF4.Dataset(str(path), "w") as dataset:
        dataset.createDimension("profile", None)
        dataset.createDimension("depth", NUM_LEVELS)
        dataset.createVariable("depth", "f8", ("depth",))[:] = 10.0 * np.arange(NUM_LEVELS)
        dataset["depth"].units = "m"
        for name, standard_name, values, units in (
            ("thetao", "sea_water_potential_temperature", temperature, "degC"),
            ("so", "sea_water_salinity", salinity, "1e-3"),
        ):
            variable = dataset.createVariable(name, "f4", ("profile", "depth"))
            variable.standard_name, variable.units = standard_name, units
            variable[:] = values
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A surface network, one of columns, and one of two targets."""
    folder = tmp_path_factory.mktemp("saber")
    columns = write_columns(folder / "columns.nc")
    mlp = ("model.name=mlp", "model.hidden_size=24", "model.hidden_activation=gelu", "training.epochs=3")
    surface = "variables.input_variables=[sst_h,sss_h,hi_h,hs_h]"
    profile = ("variables.input_variables=['thetao[:]']", "variables.output_variables=['so[:]']")
    for name, data, settings in (
        ("surface", HISTORY, (*mlp, "model.hidden_layers=3", surface)),
        ("second", HISTORY, (*mlp, "model.hidden_layers=3", surface, "seed=5")),
        ("columns", columns, (*mlp, *profile)),
        ("two", HISTORY, (*mlp, surface, "variables.output_variables=[aice_h,Tsfc_h]")),
        ("double", HISTORY, (*mlp, surface, "training.dtype=float64")),
    ):
        done = train(None, folder / name, f"data.data_path={data}", *settings)
        assert done.returncode == 0, done.stderr
    return folder


def exported(
    run: Path, output: Path, names: Sequence[str] = (), members: Sequence[Path] = (), mask: tuple[str, str] = ("", "")
) -> list[str]:  # fmt: skip
    lines: list[str] = []
    before = torch.get_num_threads()
    try:
        request = ExportRequest(
            run, output, format="saber", members=tuple(members), names=tuple(names), mask_variable=mask[0],
            mask_range=mask[1]
        )  # fmt: skip
        run_export(request, lines.append)
    finally:
        torch.set_num_threads(before)
    return lines


def surface_names() -> list[str]:
    return [f"{name}={other}" for name, other in SURFACE_NAMES.items()]


def plain_network(num_inputs: int, num_outputs: int) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(num_inputs, 16), nn.GELU(), nn.Linear(16, num_outputs))


def test_the_surface_jacobian_is_the_networks_and_zero_at_masked_nodes() -> None:
    network = plain_network(5, 1)
    names = SaberNames(tuple("abcde"), ("y",), (0,) * 5, (0,))
    emulator = torch.jit.script(emulator_of(network, torch.zeros(5), names, is_vertical=False))
    inputs, mask = torch.randn(9, 5), torch.ones(9, 1)
    mask[2], mask[4], inputs[2] = 0.0, 0.5, torch.nan
    with torch.no_grad():
        found = emulator.jac_physical(inputs, mask)
    expected = input_jacobian(network, inputs)[1]
    assert found.shape == (9, 1, 5)
    assert torch.equal(found[2], torch.zeros(1, 5))
    rest = [0, 1, 3, 4, 5, 6, 7, 8]
    assert torch.equal(found[rest], expected[rest])


RAW = (1.0, 0.5, 0.0, float("nan"), float("inf"), -3.4e38)


@pytest.mark.parametrize(
    ("mask", "counted"),
    [
        (SaberMask(), (True, True, False, False, False, True)),
        (SaberMask("ice", 0.0, 1.0), (True, True, True, False, False, False)),
        (SaberMask("ice", 0.15, 0.5), (False, True, False, False, False, False)),
        (SaberMask("b", 0.15, 1.0, column=1), (True, True, False, False, False, False)),
    ],
)
@pytest.mark.parametrize("is_vertical", [False, True])
def test_a_node_counts_whole_or_not_at_all_by_the_raw_value_of_the_masking_field(
    mask: SaberMask, counted: tuple[bool, ...], is_vertical: bool
) -> None:
    """Concentrations, missing values and NaN never scale a derivative."""
    network, names = plain_network(3, 1), SaberNames(("a", "b", "c"), ("y",), (0,) * 3, (0,))
    emulator = torch.jit.script(emulator_of(network, torch.zeros(3), names, is_vertical, mask))
    inputs, values = torch.randn(6, 3), torch.tensor(RAW).unsqueeze(1)
    if mask.column >= 0:
        inputs[:, 1], values = values[:, 0], torch.ones(6, 1)
    pairs = (torch.zeros(3, dtype=torch.int64), torch.arange(3)) if is_vertical else ()
    found = emulator.jac_physical(inputs, values, *pairs).view(6, 3)
    expected = input_jacobian(network, inputs)[1].view(6, 3)
    expected[~torch.tensor(counted)] = 0
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert emulator.jac_physical(inputs[:0], values[:0], *pairs).shape[0] == 0
    assert (emulator.mask_var_name, emulator.mask_min, emulator.mask_max, emulator.mask_var_idx) == (
        mask.variable, mask.low, mask.high, mask.column,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([3, 3, 0, 3], [1, 29, 5, 1]),  # two rows, three columns: backward passes
        ([0, 3, 7, 12, 19, 4], [2, 2, 2, 5, 5, 2]),  # six rows, two columns: tangents
        ([7], [7]),
        ([], []),
    ],
)
def test_asked_entries_of_a_vertical_jacobian_are_the_whole_ones(rows: list[int], columns: list[int]) -> None:
    network = plain_network(30, 20)
    emulator = torch.jit.script(emulator_of(network, torch.zeros(30), SaberNames(("t",), ("s",)), is_vertical=True))
    inputs, mask = torch.randn(11, 30), torch.ones(11, 1)
    mask[5], mask[7], inputs[5] = 0.0, 0.5, torch.inf
    row_indices, column_indices = (torch.tensor(one, dtype=torch.int64) for one in (rows, columns))
    with torch.no_grad():
        found = emulator.jac_physical(inputs, mask, row_indices, column_indices)
    expected = input_jacobian(network, inputs)[1][:, row_indices, column_indices]
    assert found.shape == (11, len(rows))
    assert torch.equal(found[5], torch.zeros(len(rows)))
    valid = torch.arange(11) != 5
    torch.testing.assert_close(found[valid], expected[valid], rtol=1e-5, atol=1e-7)


def test_a_vertical_jacobian_costs_the_fewer_of_distinct_rows_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpitrain.export import saber_emulators

    calls: list[int] = []
    gradient_of = saber_emulators.gradient_of
    monkeypatch.setattr(saber_emulators, "gradient_of", lambda *args: calls.append(1) or gradient_of(*args))
    emulator = emulator_of(plain_network(30, 20), torch.zeros(30), SaberNames(("t",), ("s",)), is_vertical=True)
    inputs, mask = torch.randn(4, 30), torch.ones(4, 1)
    all_rows, all_columns = torch.arange(20), torch.arange(30)
    emulator.jac_physical(inputs, mask, torch.full((30,), 4), all_columns)
    assert len(calls) == 1
    emulator.jac_physical(inputs, mask, all_rows, all_rows % 3)
    assert len(calls) == 1 + 3


def test_a_surface_network_is_exported_with_saber_s_names(runs: Path, tmp_path: Path) -> None:
    flags = [word for pair in surface_names() for word in ("--name", pair)]
    done = launch(["-m", "mpitrain", "export", str(runs / "surface"), "--format", "saber", *flags], None, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("surface emulator: sea_ice_area_fraction from sea_water_potential_temperature, ")
    assert lines[2] == "derivatives are 0 where the value of SABER's masking field is 0 or not finite"
    assert lines[3].startswith("checked: predict gives the same bits, jac_physical agrees to 0 ")
    assert yaml.safe_load((tmp_path / "emulator.yaml").read_text())["saber outer blocks"] == [
        {"saber block name": "TorchBalance", "surface emulators": [
            {"name": "sea_ice_area_fraction", "path": "emulator.pt", "jacobian wrt": list(SURFACE_NAMES.values())[1:]}
        ]}
    ]  # fmt: skip
    loaded = torch.jit.load(tmp_path / "emulator.pt")
    assert loaded.input_names == list(SURFACE_NAMES.values())[1:]
    assert loaded.output_names == ["sea_ice_area_fraction"]
    assert (loaded.input_levels, loaded.output_levels) == ([0] * 4, [0])
    assert loaded.contract_version.startswith("SABER TorchBalance")


def test_a_mask_is_a_field_of_sabers_or_an_input_of_the_networks(runs: Path, tmp_path: Path) -> None:
    exported(runs / "surface", tmp_path / "a.pt", surface_names(), mask=("aice_h", "0.15,1"))
    loaded, settings = torch.jit.load(tmp_path / "a.pt"), yaml.safe_load((tmp_path / "a.yaml").read_text())
    assert (loaded.mask_var_name, loaded.mask_var_idx) == ("sea_ice_area_fraction", -1)
    entry = settings["saber outer blocks"][0]["surface emulators"][0]
    assert entry["jacobian masking"] == {"variable": "sea_ice_area_fraction"}
    for name in ("hi_h", "sea_ice_thickness"):
        lines = exported(runs / "surface", tmp_path / "b.pt", surface_names(), mask=(name, "0.01,20"))
        loaded = torch.jit.load(tmp_path / "b.pt")
        assert (loaded.mask_var_name, loaded.mask_var_idx) == ("sea_ice_thickness", 2)
        assert lines[2].startswith("derivatives are 0 where the input sea_ice_thickness is not finite or not in 0.01 ")
        assert "masking" not in (tmp_path / "b.yaml").read_text()
    lines = exported(runs / "columns", tmp_path / "c.pt", mask=("sea_area_fraction", "0.5,1"))
    block = yaml.safe_load((tmp_path / "c.yaml").read_text())["saber outer blocks"][0]
    assert block["surface emulators"] == []
    assert block["vertical emulators"][0]["jacobian masking"] == {"variable": "sea_area_fraction"}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            ("ice", ""),
            "--mask-variable: needs --mask-range too, which has no default; for example --mask-variable sea_ice",
        ),
        (("", "0,1"), "--mask-range: needs --mask-variable too"),
        (("ice", "1,0"), "--mask-range 1,0: give the lowest and the highest unmasked value, such as 0.15,1"),
        (("ice", "0.15"), "--mask-range 0.15: give the lowest"),
        (("ice", "nan,1"), "--mask-range nan,1: give the lowest"),
    ],
)
def test_what_counts_is_not_guessed(runs: Path, tmp_path: Path, mask: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        exported(runs / "surface", tmp_path / "m.pt", surface_names(), mask=mask)
    with pytest.raises(UserError, match="belong to --format saber"):
        run_export(ExportRequest(runs / "surface", tmp_path / "m.pt", mask_variable="ice"), lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_columns_take_their_names_from_the_data_and_the_ensembles_mean_is_derived(runs: Path, tmp_path: Path) -> None:
    lines = exported(runs / "columns", tmp_path / "v.pt")
    assert lines[1] == "vertical emulator: sea_water_salinity from sea_water_potential_temperature"
    assert torch.jit.load(tmp_path / "v.pt").input_names == ["sea_water_potential_temperature"]
    lines = exported(runs / "surface", tmp_path / "e.pt", surface_names(), [runs / "second"])
    loaded = torch.jit.load(tmp_path / "e.pt")
    members = [torch.jit.load(runs / name / "model.pt") for name in ("surface", "second")]
    inputs = members[0].input_mean + members[0].input_std * torch.randn(6, 4)
    mean = torch.stack([member.jac(inputs) for member in members]).mean(0)
    torch.testing.assert_close(loaded.jac_physical(inputs, torch.ones(6, 1)), mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("run", "names", "message"),
    [
        ("surface", [], r"'sst_h' has no standard_name in the run's data; give .* --name sst_h=sea_ice_area_fraction"),
        ("surface", ["aice_h"], "--name aice_h: write DATA_NAME=MODEL_NAME"),
        ("surface", [*surface_names(), "ice=x"], "--name ice=...: the network has no such variable; it has sst_h, "),
        (
            "surface",
            [*surface_names()[1:], "aice_h=dice_div_dt"],
            "'dice_div_dt': SABER splits the names .* at 'div_d'",
        ),
        ("two", [*surface_names(), "Tsfc_h=x"], "has the targets aice_h, Tsfc_h; SABER's interface has one output"),
        ("double", surface_names(), "is a network of float64; SABER's interface is for float32"),
    ],
)
def test_what_the_contract_cannot_hold_is_refused_in_one_line(
    runs: Path, tmp_path: Path, run: str, names: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        exported(runs / run, tmp_path / "m.pt", names)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program, linked with the libtorch of the torch package, or of another one: `MPITRAIN_OTHER_TORCH`."""
    root, program = Path(torch.__file__).parent, tmp_path_factory.mktemp("loader") / "saber_loader"
    root = Path(os.environ.get("MPITRAIN_OTHER_TORCH", root))
    include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch_cpu", "-lc10"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        abi,
        *include,
        str(LOADER),
        "-o",
        str(program),
        "-Wl,--no-as-needed",
        *libraries,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


def called_from_cpp(
    loader: Path, folder: Path, kind: str, inputs: torch.Tensor, mask: torch.Tensor, pairs: np.ndarray | None = None
) -> tuple[list[str], np.ndarray]:
    inputs.numpy().astype("f4").tofile(folder / "inputs.bin")
    mask.numpy().astype("f4").tofile(folder / "mask.bin")
    if pairs is not None:
        pairs.astype("i8").tofile(folder / "pairs.bin")
    command = [str(loader), kind, "m.pt", *map(str, inputs.shape)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), np.fromfile(folder / "jacobian.bin", "f4")


@pytest.mark.lab
def test_saber_s_calls_from_cpp_give_the_derivatives(runs: Path, tmp_path: Path, loader: Path) -> None:
    exported(runs / "surface", tmp_path / "m.pt", surface_names())
    model = torch.jit.load(runs / "surface" / "model.pt")
    inputs, mask = model.input_mean + model.input_std * torch.randn(50, 4), torch.ones(50, 1)
    mask[7], mask[8], mask[9], mask[10], inputs[8:10] = 0, torch.nan, torch.inf, 0.3, torch.nan
    lines, found = called_from_cpp(loader, tmp_path, "surface", inputs, mask)
    assert lines == [
        "input_names " + " ".join(list(SURFACE_NAMES.values())[1:]), "output_names sea_ice_area_fraction",
        "input_levels 0 0 0 0", "output_levels 0", "jacobian [50, 1, 4]",
    ]  # fmt: skip
    expected = model.jac(inputs).detach().numpy()
    expected[7:10] = 0
    largest = np.abs(expected).max(axis=2, keepdims=True).clip(1e-30)
    assert (np.abs(found.reshape(50, 1, 4) - expected) / largest).max() <= 1e-6
    lines, found = called_from_cpp(loader, tmp_path, "surface", inputs[:0], mask[:0])
    assert lines[-1] == "jacobian [0, 1, 4]"


@pytest.mark.lab
def test_from_cpp_concentrations_in_the_range_count_whole(runs: Path, tmp_path: Path, loader: Path) -> None:
    """The raw field: concentrations, missing values over land, NaN."""
    exported(runs / "surface", tmp_path / "m.pt", surface_names(), mask=("aice_h", "0.15,1"))
    model = torch.jit.load(runs / "surface" / "model.pt")
    inputs, mask = model.input_mean + model.input_std * torch.randn(6, 4), torch.tensor(RAW).unsqueeze(1)
    inputs[3:] = -3.4e38
    _, found = called_from_cpp(loader, tmp_path, "surface", inputs, mask)
    expected = model.jac(inputs).detach().numpy().reshape(6, 4)
    expected[2:] = 0
    np.testing.assert_allclose(found.reshape(6, 4), expected, rtol=1e-5)


@pytest.mark.lab
def test_saber_s_vertical_calls_from_cpp_give_the_pairs(runs: Path, tmp_path: Path, loader: Path) -> None:
    exported(runs / "columns", tmp_path / "m.pt")
    model = torch.jit.load(runs / "columns" / "model.pt")
    inputs, mask = model.input_mean + model.input_std * torch.randn(30, NUM_LEVELS), torch.ones(30, 1)
    mask[3], mask[4], mask[5] = 0, torch.nan, 0.3
    pairs = np.array([[0, 1, 5, 5, 2], [0, 1, 1, 0, 0]])
    lines, found = called_from_cpp(loader, tmp_path, "vertical", inputs, mask, pairs)
    assert lines[:2] == ["input_names sea_water_potential_temperature", "output_names sea_water_salinity"]
    whole = model.jac(inputs).detach().numpy()
    whole[3:5] = 0
    largest = np.abs(whole).max(axis=2)[:, pairs[0]].clip(1e-30)
    assert (np.abs(found.reshape(30, 5) - whole[:, pairs[0], pairs[1]]) / largest).max() <= 1e-6
    assert called_from_cpp(loader, tmp_path, "vertical", inputs[:0], mask[:0], pairs)[1].size == 0


def test_the_adjoint_is_the_transpose_of_the_tangent_linear_in_float64() -> None:
    emulator = emulator_of(plain_network(8, 5).double(), torch.zeros(8).double(), SaberNames(("t",), ("s",)), True)
    inputs, mask = torch.randn(6, 8).double(), torch.ones(6, 1).double()
    rows, columns = torch.arange(5).repeat_interleave(8), torch.arange(8).repeat(5)
    by_rows = emulator.jac_physical(inputs, mask, rows, columns).view(6, 5, 8)
    by_columns = torch.stack(
        [emulator.jac_physical(inputs, mask, torch.arange(5), torch.full((5,), c)) for c in range(8)], 2
    )
    dx, dy = torch.randn(6, 8).double(), torch.randn(6, 5).double()
    forward = (torch.einsum("noi,ni->no", by_columns, dx) * dy).sum()
    backward = (torch.einsum("noi,no->ni", by_rows, dy) * dx).sum()
    assert abs(forward - backward) <= 1e-12 * abs(forward)


_PAIRS_IN_CPP = """
#include <cstdio>
#include <vector>
#include "m.hpp"
int main() {
    const int n = 30;
    std::vector<float> x(n * m::num_inputs), mask(n), pairs(n * 5);
    const int rows[] = {0, 1, 5, 5, 2}, columns[] = {0, 1, 1, 0, 0};
    FILE *inputs = fopen("inputs.bin", "rb"), *masks = fopen("mask.bin", "rb");
    FILE *out = fopen("pairs_of_source.bin", "wb");
    if (fread(x.data(), 4, x.size(), inputs) != x.size() || fread(mask.data(), 4, n, masks) != n) return 1;
    m::jac_pairs(n, m::layout::row_major, mask.data(), x.data(), 5, rows, columns, pairs.data());
    fwrite(pairs.data(), 4, pairs.size(), out);
    return fclose(out);
}
"""


@pytest.mark.lab
def test_the_source_without_torch_gives_the_pairs_that_the_emulator_gives(
    runs: Path, tmp_path: Path, loader: Path
) -> None:
    exported(runs / "columns", tmp_path / "m.pt")
    run_export(ExportRequest(runs / "columns", tmp_path / "m.hpp", format="c++"), lambda line: None)
    model = torch.jit.load(runs / "columns" / "model.pt")
    inputs, mask = model.input_mean + model.input_std * torch.randn(30, NUM_LEVELS), torch.ones(30, 1)
    mask[3] = 0
    pairs = np.array([[0, 1, 5, 5, 2], [0, 1, 1, 0, 0]])
    _, found = called_from_cpp(loader, tmp_path, "vertical", inputs, mask, pairs)
    (tmp_path / "source.cpp").write_text(_PAIRS_IN_CPP)
    for command in (["g++", "-std=c++17", "-O2", "source.cpp", "-o", "source"], [str(tmp_path / "source")]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
    ours = np.fromfile(tmp_path / "pairs_of_source.bin", "f4").reshape(30, 5)
    largest = np.abs(model.jac(inputs).detach().numpy()).max(axis=2)[:, pairs[0]].clip(1e-30)
    assert (np.abs(ours - found.reshape(30, 5)) / largest).max() <= 1e-6
    assert not ours[3].any()
    assert not found.reshape(30, 5)[3].any()


@pytest.mark.parametrize("columns", [("u", "u[time-1]"), ("u[time-2]", "u[time-1]"), ("u[time-1]", "u[row-1]")])
def test_one_variable_at_two_times_is_not_two_levels(columns: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=r"the columns of u are not adjacent, or are of several times"):
        _blocks(columns, {"u": "eastward_wind"}, None)
    assert len(_blocks(("u[z=0]", "u[z=1]"), {"u": "eastward_wind"}, None)) == 1
