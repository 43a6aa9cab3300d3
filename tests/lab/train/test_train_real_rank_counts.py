"""One hash on 1 to 24 ranks of real launches: networks and batches of each kind, in memory and streamed, resumed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from many_runs import run_many

DENSE = ("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=16")
OF_POINTS = {
    "dense": DENSE,
    "residual": (*DENSE, "model.residual=true", "model.layer_norm=true"),
    "batch norm": (*DENSE, "model.batch_norm=true"),
    "dropout": (*DENSE, "model.dropout=0.2"),
}
OF_FIELDS = {name: (f"model.name={name}", "model.hidden_size=8") for name in ("cnn", "unet")}
WAYS = {"in memory": (), "streamed": ("data.streaming=true",)}
# A tenth of the samples is held out; the largest batch is filled by what is left.
NUM_SAMPLES, NUM_FILES, GRID = 4_700, 20, (6, 8)
RANK_COUNTS, BATCHES = (1, 2, 3, 5, 8, 16, 24), (16, 64, 1000, 4096)
# The ranks that begin a run, and those that end it.
RESUMED_ON = ((1, 24), (16, 5), (3, 8), (24, 2))
TIMEOUT_S = 1_800


def write_samples(folder: Path) -> None:
    """Files of points of two inputs, which streams share, and as many small fields of one input."""
    random = np.random.default_rng(6)
    a, b = random.normal(size=(2, NUM_SAMPLES))
    for number, rows in enumerate(np.array_split(np.arange(NUM_SAMPLES), NUM_FILES)):
        held = {"a": a[rows], "b": b[rows], "y": np.sin(a[rows]) + a[rows] * b[rows]}
        np.savez(folder / f"points-{number:02d}.npz", **held)
    with netCDF4.Dataset(str(folder / "fields.nc"), "w") as file:
        for name, size in zip(("time", "lat", "lon"), (NUM_SAMPLES, *GRID), strict=True):
            file.createDimension(name, size)
            file.createVariable(name, "f8", (name,))[:] = np.linspace(0, 40, size)
        file["time"].units, file["lat"].units, file["lon"].units = (
            "days since 2001-01-01",
            "degrees_north",
            "degrees_east",
        )
        field = random.normal(size=(NUM_SAMPLES, *GRID)).astype("f4")
        file.createVariable("a", "f4", ("time", "lat", "lon"))[:] = field
        file.createVariable("y", "f4", ("time", "lat", "lon"))[:] = np.sin(field) + np.roll(field, 1, axis=2)


def settings_of(folder: Path, network: str, batch: int, way: str) -> list[str]:
    data = (
        (f"data.data_path={folder}/fields.nc", "variables.input_variables=[a]", "data.samples=fields")
        if network in OF_FIELDS
        else (f"data.data_path={folder}/points-*.npz", "variables.input_variables=[a, b]")
    )
    training = ("training.epochs=2", f"training.global_batch_size={batch}", "data.validation_split=0.1")
    settings = (*data, "variables.output_variables=[y]", *training, *(OF_POINTS | OF_FIELDS)[network], *WAYS[way])
    return [*settings, "output.progress=lines"]


def run_all(folder: Path, num_ranks: int, jobs: dict[str, list[str]], code: int = 0) -> dict[str, str]:
    """Run the jobs in one launch; return the hash of the weights of each that has finished."""
    outcomes = run_many(folder, num_ranks, list(jobs.values()), TIMEOUT_S)
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert set(outcome.codes) == {code}, f"{job} on {num_ranks} ranks: {outcome.stderr}"
    folders = {job: arguments[1].partition("=")[2] for job, arguments in jobs.items()}
    return {job: _hash_of(Path(folder)) for job, folder in folders.items() if code == 0}


def _hash_of(folder: Path) -> str:
    return str(json.loads((folder / "run_record.json").read_text())["result"]["weights_sha256"])


def test_one_hash_on_any_number_of_ranks_also_when_resumed_on_another(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    full = request.config.getoption("--full")
    networks, batches = (OF_POINTS | OF_FIELDS, BATCHES) if full else (("batch norm", "unet"), (1000,))
    launches = tmp_path / "launches"
    write_samples(tmp_path)
    orders = {
        f"{network}, batch of {batch}, {way}": settings_of(tmp_path, network, batch, way)
        for network, batch, way in itertools.product(networks, batches, WAYS)
    }

    def jobs(start: str, *more: str) -> dict[str, list[str]]:
        return {
            order: ["train", f"output.model_dir={tmp_path}/{start}/{number}", *settings, *more]
            for number, (order, settings) in enumerate(orders.items())
        }

    hashes = {count: run_all(launches / f"on-{count}", count, jobs(str(count))) for count in _of(RANK_COUNTS, full)}
    for first, then in RESUMED_ON if full else RESUMED_ON[1:2]:
        name = f"from-{first}-to-{then}"
        # Two epochs of the largest batch are two steps.
        run_all(launches / f"{name}-begun", first, jobs(name, "training.max_steps=1"), code=5)
        resumed = {order: [*job, "--resume", "training.max_steps=null"] for order, job in jobs(name).items()}
        hashes[name] = run_all(launches / name, then, resumed)
    alone = hashes[1]
    assert len(set(alone.values())) == len(alone), "each order has weights of its own"
    assert {name: {order for order in alone if found[order] != alone[order]} for name, found in hashes.items()} == {
        name: set() for name in hashes
    }


def _of(rank_counts: tuple[int, ...], full: bool) -> tuple[int, ...]:
    return rank_counts if full else (rank_counts[0], rank_counts[-1])
