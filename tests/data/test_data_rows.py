"""Rows of tables without times: levels one after the other, cut and weighed as before they were."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from field_files import config_of, read_all

from mpitrain.cli.main import main
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError

NAMES = ("variables.input_variables=[x]", "variables.output_variables=[y]")


def columns(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    found = {name: random.normal(size=count) for name in ("x", "y")}
    area = random.uniform(50, 400, count)
    area[0] = 0
    places = {"lat": np.sort(random.uniform(-90, 90, count)), "lon": random.uniform(0, 360, count)}
    return found | places | {"area": area}


def opened(path: object, *settings: str, target_bytes: int = 2**14) -> SampleSource:
    return open_source(selection_of(config_of(path, *settings)), target_bytes)


@pytest.mark.parametrize("kind", ["contiguous", "blocks", "npz"])
@pytest.mark.parametrize(
    "settings",
    [(), ("domain.latitude_range=[20, 60]",), ("domain.mask=lat > 10 and x > 0",),
     ("data.area_variable=area", "training.area_weighted_loss=true"),
     ("variables.input_variables=[x, lat]", "domain.pole=north")],
)  # fmt: skip
def test_rows_are_cut_and_weighed_as_those_of_a_grid_were(tmp_path: Path, kind: str, settings: tuple[str, ...]) -> None:
    """What streams of samples, and so the bits of runs of before, follow; what lies in blocks is read in parts."""
    values, path = columns(20_000), tmp_path / ("f.npz" if kind == "npz" else "f.h5")
    if kind == "npz":
        np.savez(path, **values)
    else:
        with h5py.File(path, "w") as file:
            for name, column in values.items():
                file.create_dataset(name, data=column, chunks=(500,) if kind == "blocks" else None)
    rows, grid = opened(path, *settings), opened(path, *settings, "data.rules=1")
    assert (rows.grid_shape, rows.num_points) == ((1, 1), grid.num_points)
    cuts = [(one.time_start, one.time_stop) for one in rows.chunks]
    assert cuts == [(one.row_start, one.row_stop) for one in grid.chunks]
    assert len(cuts) > 1 or kind == "npz"
    found, expected = rows.read_all(), grid.read_all()
    for name, column in expected.columns().items():
        assert np.array_equal(found.columns()[name], column)


def test_a_target_of_one_value_is_not_repeated_for_each_row(tmp_path: Path) -> None:
    for name, x, y in (("one", 100, 1), ("fewer", 100, 90)):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(float(x)), y=np.arange(float(y)))
        with pytest.raises(DataError, match=rf"variable 'x' has .* \({x}, 1, 1\), expected \({y}, 1, 1\) as 'y' has"):
            opened(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "constant.npz", x=3.0, y=np.arange(5.0))
    assert len(read_all(opened(tmp_path / "constant.npz"))) == 5


@pytest.mark.parametrize("steps", [-1, 2, -30])
def test_lags_of_time_of_rows_without_times_stay_at_a_station(tmp_path: Path, steps: int) -> None:
    station, day = np.tile(np.arange(3), 20), np.repeat(np.arange(20), 3)
    np.savez(tmp_path / "f.npz", station=station, x=100.0 * station + day, y=100.0 * station + day)
    source = opened(tmp_path / "f.npz", f"variables.input_variables=['x[time{steps:+d}]']")
    samples = read_all(source)
    assert len(samples) == 3 * max(0, 20 - abs(steps))
    assert (samples.inputs == samples.targets + steps).all()
    rows = read_all(opened(tmp_path / "f.npz", "variables.input_variables=['x[row-1]']"))
    assert len(rows) == 59


def test_tables_with_places_are_drawn_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "f.npz", **columns(50))
    assert main(["data", "inspect", str(tmp_path / "f.npz"), *NAMES, "--maps", str(tmp_path / "maps")]) == 0
    assert {one.name for one in (tmp_path / "maps").iterdir()} == {"x.png", "y.png"}
    assert "grid: none: a table of 50 rows without times" in capsys.readouterr().out
    np.savez(tmp_path / "dated.npz", when=np.datetime64("2001-01-01") + np.arange(50), **columns(50))
    assert main(["data", "inspect", str(tmp_path / "f.npz"), str(tmp_path / "dated.npz"), *NAMES]) == 0
    assert "without times" not in capsys.readouterr().out
    np.savez(tmp_path / "mixed.npz", many=np.random.default_rng(0).normal(size=(60, 8)), y=np.arange(60.0))
    assert main(["data", "inspect", str(tmp_path / "mixed.npz")]) == 0
