"""Hostile archives given to the public commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import train
from hostile_archives import as_data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(None, folder, f"data.data_path={small_history}", "training.epochs=1").returncode == 0
    return folder


def command(use: str, path: Path, run: Path, history: Path) -> list[str]:
    """The arguments that give a file to the package, in a folder of its own."""
    folder = path.parent
    training = ["train", f"output.model_dir={folder / 'run'}", "training.epochs=1"]
    if use == "data":
        as_data(path)
        return [*training, f"data.data_path={path}"]
    if use == "weights":
        return [*training, f"data.data_path={history}", f"model.initial_weights={path}"]
    if use == "model":
        return ["predict", str(path), "--data", str(history), "--output", str(folder / "p.nc")]
    planted = shutil.copytree(run, folder / "planted")
    if use == "folder":
        shutil.copy(path, planted / "model.pt")
        return ["predict", str(planted), "--output", str(folder / "p.nc")]
    for file in (planted / "checkpoints").rglob("*.safetensors"):
        shutil.copy(path, file)
    if use == "checkpoint":
        return ["export", str(planted), "--output", str(folder / "m.pt")]
    return ["train", "--resume", f"output.model_dir={planted}", "training.epochs=2"]
