"""Points, columns, fields and tables by the default settings: one hash on 1 and 3 ranks, in memory and streamed."""

from __future__ import annotations

import json
from pathlib import Path

import netCDF4
import numpy as np
import test_data_cases_on_ranks as cases
from conftest import TESTS, launch

TIMES, LEVELS, ROWS, COLUMNS = 24, 3, 5, 6
KINDS = {
    "points": ("a.nc", "variables.input_variables=[s]", "variables.output_variables=[t]"),
    "columns": ("b.nc", "variables.input_variables=['u[z=:]']", "variables.output_variables=['v[z=:]']"),
    "fields": ("a.nc", "variables.input_variables=[s]", "variables.output_variables=[t]", "data.samples=fields"),
    "table": ("c.npz", "variables.input_variables=[a, b]", "variables.output_variables=[y]"),
}


def write_files(folder: Path) -> None:
    """A file of s and t on a grid, one of u and v with levels, and a table; each target follows its input."""
    random = np.random.default_rng(4)
    surface = random.normal(size=(2, TIMES, ROWS, COLUMNS))
    columns = random.normal(size=(2, TIMES, LEVELS, ROWS, COLUMNS))
    a, b, noise = random.normal(size=(3, 700))
    np.savez(folder / "c.npz", a=a, b=b, y=np.sin(a) + b + 0.1 * noise)
    for name, axes, values, named in (
        ("a.nc", ("time", "y", "x"), surface, "st"), ("b.nc", ("time", "z", "y", "x"), columns, "uv"),
    ):  # fmt: skip
        with netCDF4.Dataset(str(folder / name), "w") as file:
            for axis, size in zip(axes, values.shape[1:], strict=True):
                file.createDimension(axis, size)
                file.createVariable(axis, "f8", (axis,))[:] = np.arange(size)
            file["time"].units = "days since 2001-01-01"
            if "z" in axes:
                file["z"].axis = "Z"
            file.createVariable(named[0], "f4", axes)[:] = values[0]
            file.createVariable(named[1], "f4", axes)[:] = np.cos(values[0]) + 0.1 * values[1]


def train_all(folder: Path, kinds: dict[str, tuple[str, ...]], num_ranks: int) -> dict[str, str]:
    """Train every kind in one launch, in memory and streamed; return the hashes by kind and way."""
    orders = [
        {"files": files.split(), "settings": [*settings, "training.epochs=2"], "streamed": True, "later": "",
         "folder": str(folder / f"on_{num_ranks}" / kind)}
        for kind, (files, *settings) in kinds.items()
    ]  # fmt: skip
    (folder / "orders.json").write_text(json.dumps(orders))
    done = launch([str(TESTS / "data" / "user_runs.py"), str(folder / "orders.json")], num_ranks, folder)
    assert done.returncode == 0, done.stderr
    found = {}
    for kind in kinds:
        for way in ("held", "streamed"):
            record = json.loads((folder / f"on_{num_ranks}" / kind / way / "run_record.json").read_text())
            found[f"{kind}, {way}"] = record["result"]["weights_sha256"]
    return found


def test_one_hash_of_each_kind_of_samples_on_one_rank_and_on_three(tmp_path: Path) -> None:
    write_files(tmp_path)
    alone = train_all(tmp_path, KINDS, 1)
    assert train_all(tmp_path, KINDS, 3) == alone
    assert len(set(alone.values())) == len(alone), "in memory and streamed have another order of samples"


def test_one_hash_of_each_file_of_the_cases(tmp_path: Path) -> None:
    cases.write_files(tmp_path)
    kinds = {}
    for kind in cases.KINDS:
        files, settings = cases.settings_of(kind)
        kinds[kind] = (files.strip("[]").replace(",", ""), *settings, "domain.mask_mode=all")
    assert train_all(tmp_path, kinds, 1) == train_all(tmp_path, kinds, 3)
