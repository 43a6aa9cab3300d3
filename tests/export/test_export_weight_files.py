"""`mpitrain export --format mom6` and `pumas`: the readers' arithmetic, what the formats cannot hold, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest

import mpitrain
from mpitrain.cli.main import main
from mpitrain.errors import UserError
from mpitrain.export.command import run_export
from mpitrain.export.request import ExportRequest

NAMES = ["warm [degC]", "b", "c"]
HOW = {"data.split": "random", "training.average": None, "epochs": 2, "inputs": NAMES, "quiet": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, random = tmp_path_factory.mktemp("weights"), np.random.default_rng(4)
    data = {name: 3 * random.normal(size=400) + number for number, name in enumerate(NAMES)}
    data |= {"y": np.abs(data["b"] * data["c"]), "z": 1 + np.sin(data["b"])}
    for name, model in {
        "relu": {"hidden_activation": "relu"}, "line": {"hidden_activation": "none", "hidden_layers": 12},
        "tanh": {"hidden_activation": "tanh"}, "gelu": {"hidden_activation": "gelu"},
        "deep": {"hidden_activation": "relu", "hidden_layers": 10},
        "norm": {"hidden_activation": "relu", "layer_norm": True},
        "bend": {"hidden_activation": "relu", "output_activation": "relu"},
        "skip": {"hidden_activation": "relu", "residual": True},
    }.items():  # fmt: skip
        given = {"name": "mlp", "hidden_layers": 2, "hidden_size": 6, "residual": False, **model}
        mpitrain.train(data, targets=["y", "z"], output=path / name, settings={"model": given}, **HOW)
    np.savez(path / "rows.npz", **{name: values[:20] for name, values in data.items()})
    return path


def exported(run: Path, output: Path, **how: Any) -> list[str]:
    lines: list[str] = []
    run_export(ExportRequest(run, output, **how), lines.append)
    return lines


def answers_of(file: netCDF4.Dataset, inputs: np.ndarray) -> np.ndarray:
    """What MOM6 computes from a file."""
    values = (inputs - file["input_means"][:]) * (1 / file["input_norms"][:])
    count = int(file["num_layers"][...]) - 1
    for number in range(count):
        values = values @ file[f"A{number}"][:] + file[f"b{number}"][:]
        values = np.maximum(values, 0) if number < count - 1 else values
    return values * file["output_norms"][:] + file["output_means"][:]


def answers_of_pumas(file: netCDF4.Dataset, inputs: np.ndarray) -> np.ndarray:
    """What PUMAS computes from a file."""
    values = inputs
    for letters in file["layer_names"][:]:
        name = b"".join(letters.tolist()).decode()
        assert len(name) == 8
        values = values @ file[f"{name}_weights"][:] + file[f"{name}_bias"][:]
        activation = file[f"{name}_weights"].activation
        values = {"linear": lambda z: z, "relu": lambda z: np.maximum(z, 0), "tanh": np.tanh}[activation](values)
    return values


@pytest.mark.parametrize(
    ("run", "kind", "num_layers"),
    [("relu", "mom6", 3), ("line", "mom6", 1), ("relu", "pumas", 3), ("tanh", "pumas", 3), ("bend", "pumas", 3)],
)
def test_what_the_reader_computes_are_predictions(
    folder: Path, tmp_path: Path, run: str, kind: str, num_layers: int
) -> None:
    lines = exported(folder / run, tmp_path / "n.nc", format=kind)
    assert lines[-1].startswith("checked: computed as by its reader, ")
    with np.load(folder / "rows.npz") as rows, netCDF4.Dataset(str(tmp_path / "n.nc")) as file:
        file.set_auto_mask(False)
        inputs = np.stack([rows[name] for name in NAMES], axis=1)
        predicted = mpitrain.open(folder / run).predict(dict(rows))
        expected = np.stack([predicted[name].values for name in ("y", "z")], axis=1)
        answer = answers_of if kind == "mom6" else answers_of_pumas
        assert np.abs(answer(file, inputs) - expected).max() <= 1e-5 * np.abs(expected).max()
        assert len(file.dimensions["num_layers"] if kind == "pumas" else file["layer_sizes"][1:]) == num_layers
        probe = file["x_test"][:]
        np.testing.assert_allclose(answer(file, probe[None])[0], file["y_test"][:], rtol=1e-9)
        ranges = np.array(json.loads(file.input_ranges))
        assert ((probe >= ranges[:, 0]) & (probe <= ranges[:, 1])).all()
        assert json.loads(file.input_names) == NAMES
        assert json.loads(file.output_names) == ["y", "z"]
        assert json.loads(file.run_record)["result"]["weights_sha256"]
    exported(folder / run, tmp_path / "again.nc", format=kind)  # its own file is replaced without a word
    exported(folder / run, tmp_path / "again.nc", format=kind)


@pytest.mark.parametrize(
    ("run", "how", "message"),
    [
        ("tanh", {"format": "mom6"}, "supports no tanh: its reader would compute another activation; train with relu"),
        ("gelu", {"format": "pumas"}, "supports no gelu: .*; train with relu or sigmoid or tanh"),
        ("deep", {"format": "mom6"}, "--format mom6 allows 10 layers; this network has 11"),
        ("norm", {"format": "pumas"}, "supports no layer norm and no residual connections"),
        ("skip", {"format": "mom6"}, "supports no layer norm and no residual connections"),
        ("bend", {"format": "mom6"}, "relu after every layer but the last, .*has relu, relu, relu"),
        ("relu", {"format": "mom6", "members": ("tanh",)}, "one network|another architecture|other|holds one"),
        ("relu", {"format": "mom6", "profile": "meso-sfn"}, "reads 5 or 45 inputs and 2 outputs; this network has 3"),
        ("relu", {"format": "mom6", "profile": "x"}, "--profile x: give one of zanna-bolton, meso-sfn"),
        ("relu", {"format": "pumas", "profile": "meso-sfn"}, "--profile belongs to --format mom6"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_left(
    folder: Path, tmp_path: Path, run: str, how: dict[str, Any], message: str
) -> None:
    how = {**how, "members": tuple(folder / one for one in how.get("members", ()))}
    with pytest.raises(UserError, match=message):
        exported(folder / run, tmp_path / "n.nc", **how)
    assert list(tmp_path.iterdir()) == []


def test_a_netcdf_file_is_weights_by_format_alone(folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(folder / "relu"), "--output", str(tmp_path / "n.nc")]) == 2
    assert main(["export", str(folder / "relu"), "--format", "mom6", "--output", str(tmp_path / "n.pt")]) == 2
    assert main(["export", str(folder / "relu"), "--format", "mom6", "--output", str(tmp_path / "n.nc")]) == 0
