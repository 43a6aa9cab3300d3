"""The default for fields, as a user runs it: it begins at a regression of each point, and keeps it where it is best."""

from __future__ import annotations

import json
import re
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import Finished, launch

ROWS, COLUMNS, TIMES = 5, 6, 60
BEGINNING = "the initial linear regression"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y follows its earlier level with another slope and mean at each point, and noise; no land."""
    random, path = np.random.default_rng(2), tmp_path_factory.mktemp("fields") / "y.nc"
    slope, mean = random.uniform(-0.9, 0.9, (ROWS, COLUMNS)), random.normal(10, 5, (ROWS, COLUMNS))
    values = [np.zeros((ROWS, COLUMNS))]
    for _ in range(TIMES - 1):
        values.append(slope * values[-1] + random.normal(size=(ROWS, COLUMNS)))
    with netCDF4.Dataset(path, "w") as file:
        for name, size, units in (("time", TIMES, "days since 2001-01-01"), ("lat", ROWS, "degrees_north"),
                                  ("lon", COLUMNS, "degrees_east")):  # fmt: skip
            file.createDimension(name, size)
            axis = file.createVariable(name, "f8", (name,))
            axis.units = units
            axis[:] = np.arange(size)
        variable = file.createVariable("y", "f4", ("time", "lat", "lon"))
        variable[:] = np.stack(values) + mean
    return path


def train(data: Path, folder: Path, *settings: str, num_ranks: int | None = None) -> Finished:
    names = ("variables.input_variables=['y[time-1]']", "variables.output_variables=[y]", "data.samples=fields")
    words = ["-m", "mpitrain", "train", "--data", str(data), "--output", str(folder), *names, *settings]
    return launch(words, num_ranks)


def record(folder: Path) -> dict:
    return json.loads((folder / "run_record.json").read_text())["result"]


def test_it_is_better_than_every_baseline_and_the_same_on_three_ranks(data: Path, tmp_path: Path) -> None:
    said = {count: train(data, tmp_path / str(count), num_ranks=count) for count in (1, 3)}
    assert [done.returncode for done in said.values()] == [0, 0], said
    assert record(tmp_path / "1")["weights_sha256"] == record(tmp_path / "3")["weights_sha256"]
    assert "grid: [5, 6]" in (tmp_path / "1" / "config.yaml").read_text()
    ratios = [float(one) for one in re.findall(r"^ +([\d.]+) of \w.*'s ", said[1].stdout, re.MULTILINE)]
    assert len(ratios) == 5, "the mean, persistence, linear regression, climatology by place, and by month"
    assert max(ratios) < 0.9


@pytest.mark.parametrize("way", [(), ("data.streaming=true",)])
def test_stopped_and_resumed_on_other_ranks_it_is_the_same(data: Path, tmp_path: Path, way: tuple[str, ...]) -> None:
    whole, stopped = (tmp_path / name for name in ("whole", "stopped"))
    assert train(data, whole, *way, num_ranks=3).returncode == 0
    assert train(data, stopped, *way, "training.max_steps=9", num_ranks=1).returncode == 5
    done = train(data, stopped, *way, "--resume", "training.max_steps=null", num_ranks=2)
    assert done.returncode == 0, done.stderr
    assert record(whole)["weights_sha256"] == record(stopped)["weights_sha256"]


def test_where_training_does_harm_the_regression_stays_and_the_last_lines_say_so(data: Path, tmp_path: Path) -> None:
    done = train(data, tmp_path / "run", "training.optimizer.learning_rate=0.3", "training.epochs=2")
    assert done.returncode == 0, done.stderr
    assert f"(best: {BEGINNING})" in done.stdout
    assert BEGINNING in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "run" / "report.html").unlink()
    assert launch(["-m", "mpitrain", "report", str(tmp_path / "run")]).returncode == 0
    assert BEGINNING in (tmp_path / "run" / "report.html").read_text()
    data_words = ["--data", str(data), "--output", str(tmp_path / "p.nc")]
    assert launch(["-m", "mpitrain", "predict", str(tmp_path / "run"), *data_words]).returncode == 0
    exported = launch(
        ["-m", "mpitrain", "export", str(tmp_path / "run"), "--format", "pt2", "--output", str(tmp_path / "e.pt2")]
    )
    assert exported.returncode == 0, exported.stderr
    assert "the same bits" in exported.stdout


def test_another_grid_is_refused_in_one_line(data: Path, tmp_path: Path) -> None:
    assert train(data, tmp_path / "run", "training.epochs=1").returncode == 0
    with netCDF4.Dataset(data) as file, netCDF4.Dataset(tmp_path / "other.nc", "w") as other:
        for name, size in (("time", TIMES), ("lat", ROWS - 1), ("lon", COLUMNS)):
            other.createDimension(name, size)
            axis = other.createVariable(name, "f8", (name,))
            axis.units = file[name].units
            axis[:] = file[name][:size]
        other.createVariable("y", "f4", ("time", "lat", "lon"))[:] = file["y"][:, : ROWS - 1]
    words = ["--data", str(tmp_path / "other.nc"), "--output", str(tmp_path / "p.nc")]
    done = launch(["-m", "mpitrain", "predict", str(tmp_path / "run"), *words])
    assert done.returncode == 2
    assert "its grid of 5 x 6, but these fields have 4 x 6" in done.stderr
