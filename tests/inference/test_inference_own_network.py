"""What trains can be used: a network of the user's own predicts by the folder of its run, where it is trusted."""

from __future__ import annotations

import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import launch

import mpitrain
from mpitrain.errors import UserError

NET = """import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs, width=8):
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, width)
        self.last = torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(self.cell(x))
"""
A, Z = np.random.default_rng(13).normal(size=(2, 200))
NAMES = ("variables.input_variables=[a, z]", "variables.output_variables=[b]", "model.name=mine:Net", "--epochs", "2")


def say(here: Path, *words: str, code: int = 0, ranks: int | None = None) -> str:
    done = launch(["-m", "mpitrain", *words], ranks, here)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr.strip().splitlines()[-1]


def predicted(path: Path) -> np.ndarray:
    with netCDF4.Dataset(path) as file:
        return np.asarray(file["b_predicted"][:])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a network, and a run of it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(NET)
    np.savetxt(folder / "rows.csv", np.stack([A, Z, 2 * A - Z], axis=1), delimiter=",", header="a,z,b", comments="")
    say(folder, "--data", "rows.csv", "--output", "run", *NAMES)
    return folder


def test_its_folder_predicts_what_its_model_file_does(here: Path) -> None:
    line = say(here, "predict", "run", "--data", "rows.csv", "--output", "p.nc", code=2)
    assert "model.name=mine:Net names code, which would be run; give --trust-code" in line
    told = say(here, "predict", "run", "--data", "rows.csv", "--output", "folder.nc", "--trust-code")
    assert "held out for validation" in told
    say(here, "predict", "run/model.pt", "--data", "rows.csv", "--output", "model.nc", "--trust-code")
    np.testing.assert_allclose(predicted(here / "folder.nc"), predicted(here / "model.nc"), rtol=1e-6)
    line = say(here, "predict", "run/model.safetensors", "--data", "rows.csv", "--output", "p.nc", code=2)
    assert "holds the numbers of mine:Net, which is code that would be run; give --trust-code" in line
    say(here, "predict", "run/model.safetensors", "--data", "rows.csv", "--output", "own.nc", "--trust-code")
    np.testing.assert_array_equal(predicted(here / "own.nc"), predicted(here / "folder.nc"))


def test_a_copy_without_checkpoints_serves_too(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    say(here, "report", str(tmp_path / "copy"), "--trust-code")
    assert "give --trust-code" in say(here, "report", str(tmp_path / "copy"), code=2)


def test_from_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    rows = {"a": A, "z": Z}
    with pytest.raises(UserError, match=r"; give trust_code=True if you trust"):
        mpitrain.open("run").predict(rows)
    assert np.shape(mpitrain.open("run").predict(rows, trust_code=True)["b"]) == (200,)
    assert np.shape(mpitrain.predict("run", rows, trust_code=True)["b"]) == (200,)
