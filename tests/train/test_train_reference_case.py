"""`semantics=reference` against what the original C++ program made of the same file and the same first weights.

The bits of its results belong to the vector kernels of the CPU that it ran on. Whether this CPU has the same ones is
told by one forward pass: the program's prediction with its own trained weights. Where that pass gives the same bits,
the trained weights must too; elsewhere they may differ by rounding, and no more than TOLERANCE.
"""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE, REFERENCE_EPOCHS, launch, train, train_reference_case

from mpitrain.models.files.torchscript import load_and_run_code

RANK_COUNTS = (1, 2, 3, 4)
TOLERANCE = 2e-6

# Everything from the NetCDF files and torch alone: none of the package's arithmetic is trusted here.
WITNESS = """
import sys
from pathlib import Path
import netCDF4, torch

torch.set_num_threads(1)
case = Path(sys.argv[1])

def read(file):
    with netCDF4.Dataset(case / file) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: torch.from_numpy(variable[:].copy()) for name, variable in dataset.variables.items()}

history, weights, golden = read("cice_history.nc"), read("weights_np1.nc"), read("prediction_np1.nc")
flat = {name: field.reshape(-1) for name, field in history.items()}
aice = flat["aice_h"]
selected = (flat["umask"] == 1) & (flat["ULAT"] > 40) & (aice > 0) & (aice <= 1)
names = ("Tair_h", "Tsfc_h", "sst_h", "sss_h", "hs_h", "hi_h", "sice_h")
x = torch.stack([flat[name][selected] for name in names], dim=1)
n = float(len(x))
mean = torch.sum(x, dim=0) / n
std = torch.sqrt(torch.sum(torch.pow(x, 2), dim=0) / n - torch.pow(mean, 2))
hidden = torch.nn.functional.linear((x - mean) / std, weights["fc1.weight"], weights["fc1.bias"])
y = torch.sigmoid(torch.nn.functional.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])).view(-1)
assert torch.equal(aice[selected], golden["aice"]), "other samples than the C++ program's"
difference = float((y - golden["aice_ffnn"]).abs().max())
assert difference < 1e-5, f"not the C++ program's network: {difference}"
print("same kernels" if torch.equal(y, golden["aice_ffnn"]) else "other kernels")
"""


@pytest.fixture(scope="module")
def has_golden_kernels() -> bool:
    """Whether this CPU gives the bits of the C++ program's forward pass."""
    done = launch(["-c", WITNESS, str(REFERENCE_CASE)])
    assert done.returncode == 0, done.stderr
    return {"same kernels": True, "other kernels": False}[done.stdout.strip()]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in load_and_run_code(folder / "model.pt").named_parameters()}


def golden_weights(num_ranks: int) -> dict[str, torch.Tensor]:
    with netCDF4.Dataset(REFERENCE_CASE / f"weights_np{num_ranks}.nc") as dataset:
        assert (dataset.ranks, dataset.optimizer_steps) == (num_ranks, REFERENCE_EPOCHS)
        dataset.set_auto_maskandscale(False)
        return {name: torch.from_numpy(np.array(variable[:])) for name, variable in dataset.variables.items()}


def largest_difference(weights: dict[str, torch.Tensor], golden: dict[str, torch.Tensor]) -> float:
    assert weights.keys() == golden.keys()
    assert all(weights[name].shape == golden[name].shape for name in golden)
    return max(float((weights[name] - golden[name]).abs().max()) for name in golden)


def test_weights_are_those_of_the_cpp_program(
    reference_runs: dict[int, Path], has_golden_kernels: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    num_equal, differences = 0, {}
    for num_ranks in RANK_COUNTS:
        weights, golden = weights_of(reference_runs[num_ranks]), golden_weights(num_ranks)
        num_equal += sum(torch.equal(weights[name], golden[name]) for name in golden)
        differences[num_ranks] = largest_difference(weights, golden)
    kernels = "as on the C++ program's machine" if has_golden_kernels else "others than on the C++ program's machine"
    with capsys.disabled():
        print(f"\nreference case: {num_equal} of 16 tensors equal bit for bit; vector kernels {kernels}")
        print(f"largest difference on {RANK_COUNTS} ranks: {max(differences.values()):.1e}")
    assert all(difference < TOLERANCE for difference in differences.values()), differences
    if has_golden_kernels:
        assert num_equal == 16


@pytest.mark.lab
def test_one_step_less_is_outside_the_tolerance(tmp_path: Path) -> None:
    train_reference_case(tmp_path, 1, REFERENCE_EPOCHS - 1)
    assert largest_difference(weights_of(tmp_path), golden_weights(1)) > TOLERANCE


def test_weights_of_another_rank_count_are_outside_the_bits() -> None:
    """The four golden files are four results: taking one for another would not go unseen where bits are compared."""
    golden = {num_ranks: golden_weights(num_ranks) for num_ranks in RANK_COUNTS}
    assert len({tuple(golden[num_ranks]["fc1.weight"].flatten().tolist()) for num_ranks in RANK_COUNTS}) == 4


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_banner_names_the_order_of_addition_that_is_used(tmp_path: Path, num_ranks: int) -> None:
    history = f"data.data_path={REFERENCE_CASE / 'cice_history.nc'}"
    done = train(num_ranks, tmp_path / "run", "semantics=reference", history, "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert ", reduction in MPI's order, engine reference; " in done.stdout
    assert "reduction fixed" not in done.stdout
