"""Prediction files as another program judges them: the IOOS compliance checker, by the CF conventions 1.8.

Skipped where `compliance-checker` is neither on the PATH nor named by MPITRAIN_COMPLIANCE_CHECKER; it comes by
`pip install compliance-checker`, in an environment of its own as it pins other packages' versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from predicting import config_of, mlp, predict_played, save, write_grid
from test_inference_real_files import LEVELS, NAMES, write_mesh, write_ocean, write_rotated

CHECKER = os.environ.get("MPITRAIN_COMPLIANCE_CHECKER") or shutil.which("compliance-checker")
NAMED = ("variables.input_variables=[x]", "variables.output_variables=[y]")
XY = ("variables.input_variables=[x]", "variables.output_variables=[y]", "domain.mask_mode=all")


def complaints(path: Path) -> list[str]:
    """What the checker finds wrong with errors and warnings, one line each."""
    if CHECKER is None:
        pytest.skip("no compliance-checker; pip install compliance-checker")
    report = path.with_suffix(".json")
    words = [CHECKER, "--test", "cf:1.8", "--format", "json", "--output", str(report), str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert report.is_file(), done.stderr
    found = json.loads(report.read_text())["cf:1.8"]
    priorities = ("high_priorities", "medium_priorities")
    return [line for one in priorities for check in found[one] for line in check["msgs"]]


@pytest.mark.parametrize("kind", ["points", "fields"])
def test_predictions_on_a_grid(kind: str, tmp_path: Path) -> None:
    network = {"name": "cnn"} if kind == "fields" else {}
    model = save(mlp(1, **network), tmp_path / "model.pt", ("x",), ("y",))
    config = config_of(write_grid(tmp_path / "data.nc"), *XY, f"data.samples={kind}")
    predict_played(model, config, tmp_path / "prediction.nc", with_jacobian=kind == "points")
    assert complaints(tmp_path / "prediction.nc") == []


def test_predictions_of_levels(tmp_path: Path) -> None:
    model = save(mlp(3, 3), tmp_path / "model.pt", NAMES["salt"], NAMES["temp"])
    predict_played(model, config_of(write_ocean(tmp_path / "data.nc"), *LEVELS), tmp_path / "prediction.nc")
    assert complaints(tmp_path / "prediction.nc") == []


def test_predictions_at_one_level_each(tmp_path: Path) -> None:
    names = ("salt[depth=0]",), ("temp[depth=10]", "salt[depth=30]")
    model = save(mlp(1, 2), tmp_path / "model.pt", *names)
    settings = ["variables.input_variables=['salt[depth=0]']"]
    settings.append("variables.output_variables=['temp[depth=10]', 'salt[depth=30]']")
    path = write_ocean(tmp_path / "data.nc")
    with netCDF4.Dataset(str(path), "a") as dataset:
        for name in ("temp", "salt"):
            dataset[name].cell_methods = "time: mean"
    for layout in ("grid", "rows"):
        predict_played(model, config_of(path, *settings), tmp_path / "prediction.nc", layout=layout)
        assert complaints(tmp_path / "prediction.nc") == []


@pytest.mark.parametrize("kind", ["rotated pole", "cells", "stations", "reports", "series", "table", "csv"])
def test_predictions_that_are_no_latitudes_and_longitudes(kind: str, tmp_path: Path) -> None:
    write = {"rotated pole": write_rotated, "cells": write_mesh, "table": write_table, "csv": write_csv}
    settings = () if kind == "table" else NAMED
    write_one = write.get(kind) or (lambda path: write_stations(path, kind))
    suffix = {"table": "npz", "csv": "csv"}.get(kind, "nc")
    path = write_one(tmp_path / f"data.{suffix}")
    model = save(mlp(1), tmp_path / "model.pt", ("x",), ("y",))
    predict_played(model, config_of(path, *settings), tmp_path / "prediction.nc")
    assert complaints(tmp_path / "prediction.nc") == []


def write_table(path: Path) -> Path:
    """x and y as arrays of inputs and targets."""
    np.savez(path, inputs=np.arange(8.0)[:, None], targets=np.arange(8.0)[:, None])
    return path


def write_csv(path: Path) -> Path:
    """x and y as columns with places."""
    path.write_text("lat,lon,x,y\n" + "".join(f"{row},{2 * row},{row / 2},{row / 3}\n" for row in range(8)))
    return path


def write_stations(path: Path, kind: str) -> Path:
    """x and y of stations at each time, of single reports, or of one place (CF conventions, chapter 9)."""
    along = {"stations": ("time", "station"), "reports": ("obs",), "series": ("n",)}[kind]
    degrees = {"lat": "degrees_north", "lon": "degrees_east"}
    places = {} if kind == "series" else {name: (along[-1:], {"units": units}) for name, units in degrees.items()}
    variables = {
        "time": (along[:1], {"units": "days since 2000-01-01", "standard_name": "time"}), **places,
        **{name: (along, {"units": "K", "coordinates": " ".join(["time", *places]), "cell_methods": "time: mean"})
           for name in "xy"},
    }  # fmt: skip
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name in along:
            dataset.createDimension(name, 5)
        for name, (own, attributes) in variables.items():
            variable = dataset.createVariable(name, "f8", own)
            variable.setncatts(attributes)
            variable[...] = np.arange(5.0 ** len(own)).reshape([5] * len(own))
    return path
