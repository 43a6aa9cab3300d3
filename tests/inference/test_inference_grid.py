"""Predictions for the points of a grid: they come back on that grid, cell by cell, on any number of ranks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import torch
from conftest import launch
from predicting import HISTORY, XY, config_of, golden_icenet, mlp, predict_played, read, save, write_grid

from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.datatools.inspect import inspect_data
from mpitrain.datatools.maps import draw_maps
from mpitrain.errors import DataError, UserError
from mpitrain.inference import maps
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.page import findings
from mpitrain.inference.page.findings import draw_error_map
from mpitrain.inference.predictor import CHUNK_BYTES
from mpitrain.models.files.stored_network import load_network
from mpitrain.observe.figures import render_png
from mpitrain.observe.page.places import GridErrors

FILL = np.float32(9.969209968386869e36)
ALL = (*XY[:2], "domain.mask_mode=all")
NUMBERS = np.random.default_rng(1)


def write(path: Path, dimensions: dict[str, int], places: dict[str, tuple], names: str = "xyz") -> Path:
    """x, y, z along `dimensions`; `places` are (dimensions, values, units)."""
    with netCDF4.Dataset(str(path), "w") as file:
        for name, size in dimensions.items():
            file.createDimension(name, size)
        for name, (along, values, units) in places.items():
            variable = file.createVariable(name, "f8", along)
            variable[:], variable.units = values, units
        for name in names:
            variable = file.createVariable(name, "f4", tuple(dimensions))
            variable[:] = NUMBERS.normal(size=tuple(dimensions.values()))
            variable.coordinates = " ".join(name for name in places if name not in dimensions)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(mlp(2), tmp_path_factory.mktemp("model") / "model.pt", ("x", "z"), ("y",))


def expected(path: Path) -> np.ndarray:
    """What the network says at every point of a file, NaN where an input is none."""
    stored = read(path)
    x, z = (np.where(np.abs(stored[name]) > 1e29, np.nan, stored[name]) for name in "xz")
    with torch.no_grad():
        return mlp(2)(torch.from_numpy(np.stack([x, z], axis=-1).reshape(-1, 2)))[:, 0].numpy().reshape(x.shape)


def dimensions_of(path: Path) -> dict[str, tuple[str, ...]]:
    with netCDF4.Dataset(str(path)) as file:
        return {name: variable.dimensions for name, variable in file.variables.items()}


def test_a_grid_comes_back_cell_by_cell_on_any_number_of_ranks(tmp_path: Path, model: Path) -> None:
    """Two files, whose times are of two epochs, in parts of one row; a mask that leaves rows out."""
    files = [write_grid(tmp_path / "a.nc"), write_grid(tmp_path / "b.nc", 2, 1, "2000-01-03")]
    config = config_of([str(file) for file in files], *XY, "domain.mask=lat > 15")
    predict_played(model, config, tmp_path / "1.nc", chunk_bytes=CHUNK_BYTES)
    command = ["-m", "mpitrain", "predict", str(model), "--data", *map(str, files), "--output", str(tmp_path / "2.nc")]
    done = launch([*command, *ALL, "domain.mask=lat > 15"], 2)
    assert done.returncode == 0, done.stderr
    one, two = ({name: values.tobytes() for name, values in read(tmp_path / f"{n}.nc").items()} for n in (1, 2))
    assert one == two
    predict_played(model, config, tmp_path / "p.nc", chunk_bytes=16)
    found = read(tmp_path / "p.nc")
    for name, values in read(tmp_path / "1.nc").items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)
    grid = ("time", "lat", "lon")
    assert dimensions_of(tmp_path / "p.nc") == {
        **{name: (name,) for name in grid},
        **dict.fromkeys(("y", "y_predicted", "y_error", "dy_dx", "dy_dz"), grid),
    }
    np.testing.assert_array_equal(found["time"], [0, 1, 2, 3, 4])  # the second file counts from two days later
    np.testing.assert_array_equal(found["lat"], [10, 20, 30, 40])
    np.testing.assert_array_equal(found["lon"], [0, 1, 2, 3, 4])
    stored = [read(path) for path in files]
    truth = np.concatenate([one["y"] for one in stored])
    answer = np.concatenate([expected(path) for path in files])
    is_sample = np.isfinite(answer)
    is_sample[:, 0] = False
    assert (is_sample.sum(), is_sample.size) == (5 * 15 - 2, 100)
    for name in ("y_predicted", "dy_dx", "dy_dz"):
        np.testing.assert_array_equal(found[name] == FILL, ~is_sample)
    np.testing.assert_allclose(found["y_predicted"][is_sample], answer[is_sample], atol=1e-6)
    is_measured = is_sample & np.isfinite(truth)
    np.testing.assert_array_equal(found["y"][is_measured], truth[is_measured])
    np.testing.assert_array_equal(found["y"] == FILL, ~is_measured)
    np.testing.assert_allclose(found["y_error"][is_measured], (answer - truth)[is_measured], atol=1e-6)
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["time"].units == "days since 2000-01-01"
        assert file.dimensions["time"].isunlimited()
        assert "coordinates" not in file["y"].ncattrs()


LAT, LON = np.meshgrid([50.0, 60.0], [0.0, 10.0, 20.0], indexing="ij")
LATITUDE, LONGITUDE = (("latitude",), LAT[:, 0], "degrees_north"), (("longitude",), LON[0], "degrees_east")
KINDS = {
    "two-dimensional places": (
        {"time_counter": 2, "nj": 2, "ni": 3},
        {"nav_lat": (("nj", "ni"), LAT, "degrees_north"), "nav_lon": (("nj", "ni"), LON, "degrees_east")},
    ),
    "no time": ({"latitude": 2, "longitude": 3}, {"latitude": LATITUDE, "longitude": LONGITUDE}),
    "cells": (
        {"time": 2, "nod2": 6},
        {"lon": (("nod2",), LON.ravel(), "degrees_east"), "lat": (("nod2",), LAT.ravel(), "degrees_north")},
    ),
    "no places": ({"time": 2, "nj": 2, "ni": 3}, {}),
    "the names of variables": ({"time": 2, "y_error": 2, "y_predicted": 3}, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_grid_keeps_its_dimensions_and_places(tmp_path: Path, model: Path, kind: str) -> None:
    dimensions, places = KINDS[kind]
    path = write(tmp_path / "a.nc", dimensions, places)
    predict_played(model, config_of(path, *ALL), tmp_path / "p.nc", with_jacobian=False, chunk_bytes=16)
    found, shown = read(tmp_path / "p.nc"), dimensions_of(tmp_path / "p.nc")
    np.testing.assert_allclose(found["y_predicted"], expected(path), atol=1e-6)
    np.testing.assert_array_equal(found["y"], read(path)["y"])
    assert shown["y"] == tuple(f"{name}_" if name.startswith("y_") else name for name in dimensions)
    for name, (along, values, units) in places.items():
        assert shown[name] == along
        np.testing.assert_array_equal(found[name], values)
        with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
            assert file[name].units == units
            assert (name in getattr(file["y"], "coordinates", "").split()) == (along != (name,))


def test_cells_in_radians_come_back_in_degrees(tmp_path: Path, model: Path) -> None:
    lon, lat = np.radians(LON.ravel()), np.radians(LAT.ravel())
    places = {"clon": (("ncells",), lon, "radian"), "clat": (("ncells",), lat, "radian")}
    path = write(tmp_path / "a.nc", {"time": 2, "ncells": 6}, places)
    predict_played(model, config_of(path, *ALL), tmp_path / "p.nc")
    found = read(tmp_path / "p.nc")
    np.testing.assert_allclose((found["clon"], found["clat"]), (LON.ravel(), LAT.ravel()), rtol=1e-12)


def test_files_of_several_places_keep_each_its_own(tmp_path: Path, model: Path) -> None:
    """Swaths: each file has as many rows and columns, elsewhere."""
    paths = [
        write(
            tmp_path / f"{number}.nc",
            {"time": 1, "row": 2, "column": 3},
            {
                "lat": (("row", "column"), LAT + number, "degrees_north"),
                "lon": (("row", "column"), LON, "degrees_east"),
            },
        )
        for number in range(3)
    ]
    config = config_of([str(path) for path in paths], *ALL)
    for layout in ("auto", "rows"):
        predict_played(model, config, tmp_path / "p.nc", layout=layout)
        found = read(tmp_path / "p.nc")
        np.testing.assert_array_equal(found["lat"].reshape(3, 2, 3), [LAT + number for number in range(3)])
    answers = np.concatenate([expected(path) for path in paths])
    np.testing.assert_allclose(found["y_predicted"].reshape(3, 2, 3), answers, atol=1e-6)


def write_moving(path: Path, first: int) -> Path:
    """x, y, z on 3 times, 6 rows and 3 columns whose places move; each value is of its own number, from `first` on."""
    grid, shape = ("time", "row", "column"), (3, 6, 3)
    number = first + np.arange(np.prod(shape), dtype="f8").reshape(shape)
    with netCDF4.Dataset(str(path), "w") as file:
        for name, size in zip(grid, shape, strict=True):
            file.createDimension(name, size)
        for name, values, units in (("lat", number / 8, "degrees_north"), ("lon", number / 4, "degrees_east")):
            variable = file.createVariable(name, "f8", grid)
            variable[:], variable.units = values, units
        for name, values in (("x", number / 50), ("y", -number), ("z", number % 7)):
            variable = file.createVariable(name, "f4", grid)
            variable[:], variable.coordinates = values, "lat lon"
        file.createVariable("deep", "f4", grid[1:])[:] = np.arange(6)[:, None] * np.ones(3)
    return path


@pytest.mark.parametrize("layout", ["auto", "rows"])
@pytest.mark.parametrize(
    ("kind", "chunk_bytes", "begins"),
    [
        ("points", 80, {(time, row) for time in range(3) for row in (1, 2, 4)}),
        ("points", 400, {(0, 1), (2, 1)}),
        ("fields", 300, {(0, 0), (1, 0), (2, 0)}),
        ("fields", 600, {(0, 0), (2, 0)}),
    ],
)  # fmt: skip
def test_a_chunk_of_any_times_and_rows_comes_back_in_its_place(
    tmp_path: Path, kind: str, chunk_bytes: int, begins: set[tuple[int, int]], layout: Layout
) -> None:
    """Of two files. The first row is no sample: no chunk of points begins with it."""
    paths = [write_moving(tmp_path / f"{first}.nc", first) for first in (0, 54)]
    config = config_of([str(path) for path in paths], *ALL, f"data.samples={kind}", "domain.mask=deep > 0")
    chunks = open_source(selection_of(config), chunk_bytes, 1).chunks
    assert {(chunk.time_start, chunk.row_start) for chunk in chunks} == begins
    network = mlp(2) if kind == "points" else mlp(2, name="cnn", hidden_layers=1)
    model = save(network, tmp_path / "model.pt", ("x", "z"), ("y",))
    predict_played(model, config, tmp_path / "p.nc", with_jacobian=False, chunk_bytes=chunk_bytes, layout=layout)
    found = read(tmp_path / "p.nc")
    number = np.arange(108.0).reshape(6, 6, 3)
    is_sample = np.broadcast_to(np.arange(6)[:, None] > 0, number.shape)
    if layout == "rows" and kind == "points":
        number, is_sample = number[is_sample], np.ones(90, dtype=bool)
        np.testing.assert_array_equal(found["grid_index"], number)
    told = {"y": -number, "lat": number / 8, "lon": number / 4}
    for name in ("y",) if (kind, layout) == ("fields", "rows") else told:  # of fields as rows, no moving places
        assert found[name].shape == number.shape
        np.testing.assert_array_equal(found[name][is_sample], told[name][is_sample], err_msg=name)
    np.testing.assert_array_equal(found["y"] == FILL, ~is_sample)
    np.testing.assert_array_equal(found["y_predicted"] == FILL, ~is_sample)
    np.testing.assert_allclose((found["y_predicted"] - found["y"])[is_sample], found["y_error"][is_sample], atol=1e-5)
    if kind == "points":
        answer = np.concatenate([expected(path)[:, 1:] for path in paths]).ravel()
        np.testing.assert_allclose(found["y_predicted"][is_sample].ravel(), answer, atol=1e-6)


def test_the_original_programs_rows_are_a_grid_where_asked(tmp_path: Path) -> None:
    history, model = Path(shutil.copy(HISTORY, tmp_path / "h.nc")), save(golden_icenet(), tmp_path / "model.pt")
    layouts: tuple[Layout, ...] = ("auto", "grid")
    for layout in layouts:
        predict_played(model, config_of(history), tmp_path / f"{layout}.nc", layout=layout)
    rows, grid = read(tmp_path / "auto.nc"), read(tmp_path / "grid.nc")
    assert grid["aice_h_predicted"].shape == read(history)["aice_h"].shape
    is_sample = grid["aice_h_predicted"] != FILL
    assert rows["aice_ffnn"].tobytes() == grid["aice_h_predicted"][is_sample].tobytes()
    assert rows["dcdhi"].tobytes() == grid["daice_h_dhi_h"][is_sample].tobytes()
    assert rows["lat"].tobytes() == np.broadcast_to(grid["ULAT"], is_sample.shape)[is_sample].tobytes()


def test_a_table_has_no_grid(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", inputs=np.ones((5, 2), np.float32), targets=np.ones((5, 1), np.float32))
    model = save(mlp(2), tmp_path / "model.pt", ("a", "b"), ("u",))
    with pytest.raises(UserError, match=r"--layout grid: .*t\.npz is a table of samples; leave the flag out"):
        predict_played(model, config_of(tmp_path / "t.npz"), tmp_path / "p.nc", layout="grid")


def test_cells_with_places_and_unnamed_dimensions_are_a_table(tmp_path: Path, model: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "xyz":
            file[name] = NUMBERS.normal(size=6).astype(np.float32)
        for name, units in (("lat", "degrees_north"), ("lon", "degrees_east")):
            file[name] = np.arange(6.0)
            file[name].attrs["units"] = units
    config = config_of(tmp_path / "a.h5", *ALL)
    predict_played(model, config, tmp_path / "p.nc")
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["y_predicted"].dimensions == ("n",)
        np.testing.assert_array_equal(file["lat"][:], np.arange(6.0))
    with pytest.raises(UserError, match=r"--layout grid: .*a\.h5 is a table of samples; leave the flag out"):
        predict_played(model, config, tmp_path / "p.nc", layout="grid")


def test_maps_and_scatter_plot_of_a_grid_say_units_and_when(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr(maps, "render_png", lambda figure: figures.append(figure) or render_png(figure))
    config = config_of([str(write_grid(tmp_path / "a.nc")), str(write_grid(tmp_path / "b.nc", 2, 1))], *ALL)
    for layout in ("auto", "rows"):
        predict_played(model, config, tmp_path / "p.nc", layout=layout)
        drawn = maps.draw_prediction(tmp_path / "p.nc", tmp_path / layout)
        assert [path.name for path in drawn] == ["y_predicted.png", "y_scatter.png", "y_error.png"]
    titles = [figure.axes[0].get_title() for figure in figures]
    assert titles[0] == "y, predicted, 2000-01-01 00:00:00"
    assert titles[2] == "y, predicted minus data, 2000-01-01 00:00:00"
    assert [figure.axes[1].get_ylabel() for figure in figures] == 2 * ["y (K)", "samples in a cell", "error of y (K)"]
    found = read(tmp_path / "p.nc")
    is_there = (np.abs(found["y_predicted"]) < 1e29) & (np.abs(found["y"]) < 1e29)
    predicted, truth = (found[name][is_there].astype("f8") for name in ("y_predicted", "y"))
    error, spread = predicted - truth, np.var(truth)
    r2, rmse = re.fullmatch(r"y: r2 (-?\d+\.\d+), RMSE (\d\.\d+) K\n\d\d values", titles[1]).groups()
    assert float(rmse) == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-3)
    assert float(r2) == pytest.approx(1 - np.mean(error**2) / spread, abs=1e-3)
    assert titles[4] == titles[1]
    assert figures[1].axes[0].get_xlabel() == "data (K)"


def test_a_time_that_is_missing_is_told_by_its_number(tmp_path: Path, model: Path) -> None:
    path = write_grid(tmp_path / "a.nc")
    with netCDF4.Dataset(str(path), "a") as file:
        file["time"][0] = np.nan
    predict_played(model, config_of(path, *ALL), tmp_path / "p.nc")
    assert len(maps.draw_prediction(tmp_path / "p.nc", tmp_path / "maps")) == 3
    network = load_network(model).module
    assert draw_error_map(network, open_source(selection_of(config_of(path, *ALL))), "K")[:4] == b"\x89PNG"


@pytest.mark.parametrize("kind", ["points", "fields"])
def test_maps_of_held_out_errors_say_of_what_they_are(tmp_path: Path, monkeypatch, kind: str) -> None:
    titles = []
    monkeypatch.setattr(findings, "draw_place_map", lambda source, values, look: titles.append(look.title) or b"")
    source = open_source(selection_of(config_of(write_grid(tmp_path / "a.nc"), *ALL, f"data.samples={kind}")))
    findings.draw_held_out_maps(source, GridErrors.of(np.arange(20), np.ones(20)), "K")
    of_what = {"points": "samples", "fields": "values"}[kind]
    assert [title.endswith(f" over all 20 held-out {of_what}") for title in titles] == [True, True]


@pytest.mark.parametrize(("num_times", "expected"), [(0, ""), (2, ", time level 1")])
def test_a_map_of_data_without_times_has_no_time_level(tmp_path: Path, model: Path, monkeypatch, num_times, expected):
    figures = []
    monkeypatch.setattr(findings, "render_png", lambda figure, *_: figures.append(figure) or b"")
    times = {"t": num_times} if num_times else {}
    config = config_of(write(tmp_path / "a.nc", {**times, "j": 3, "i": 4}, {}), *ALL)
    draw_error_map(load_network(model).module, open_source(selection_of(config)), "K")
    title = figures[0].axes[0].get_title().replace("\n", " ")
    assert title == f"y, predicted minus data{expected}, training and held-out samples"


def test_cells_without_places_have_a_scatter_plot_and_no_map(tmp_path: Path, model: Path) -> None:
    """A picture of them in their order would be a barcode."""
    path = write(tmp_path / "a.nc", {"time": 3, "cell": 6}, {})
    predict_played(model, config_of(path, *ALL), tmp_path / "p.nc")
    drawn = maps.draw_prediction(tmp_path / "p.nc", tmp_path / "maps")
    assert [path.name for path in drawn] == ["y_scatter.png"]
    with pytest.raises(DataError, match="no map: its cells are not ordered in rows and columns, and it has no longi"):
        draw_maps(inspect_data(config_of(path, *ALL)), tmp_path / "maps")
