"""Predictions and exports are what the endings of their names say; other endings are refused before the work."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray
from conftest import launch
from pyarrow import csv, parquet

from mpitrain.cli.main import main
from mpitrain.inference import other_formats

TINY = "model.name=mlp", "model.hidden_layers=1", "model.hidden_size=4", "--epochs", "1", "data.split=random"
LEVELS = np.array([0.5, 10.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a table, with a missing input, and one of a grid with times and two levels of a target."""
    path, random = tmp_path_factory.mktemp("formats"), np.random.default_rng(3)
    a = random.normal(size=200)
    rows = [f"{'' if number == 5 else one},{2 * one}" for number, one in enumerate(a)]
    (path / "rows.csv").write_text("\n".join(["a,b", *rows]))
    with netCDF4.Dataset(str(path / "grid.nc"), "w") as file:
        for name, values, units in (
            ("time", [0.0, 1.25, 2.0], "days since 2001-01-01"), ("depth", LEVELS, "m"),
            ("lat", np.arange(4.0), "degrees_north"), ("lon", np.arange(5.0), "degrees_east"),
        ):  # fmt: skip
            file.createDimension(name, len(values))
            file.createVariable(name, "f8", (name,)).units = units
            file[name][:] = values
        file.createVariable("t", "f4", ("time", "lat", "lon"))[:] = random.normal(size=(3, 4, 5))
        file.createVariable("s", "f4", ("time", "depth", "lat", "lon"))[:] = random.normal(size=(3, 2, 4, 5))
    for data, names in (
        ("rows.csv", ("variables.input_variables=[a]", "variables.output_variables=[b]")),
        ("grid.nc", ("variables.input_variables=[t]", "variables.output_variables=['s[:]']")),
    ):
        given = "--data", str(path / data), *names, *TINY, "--output", str(path / f"run_{data[:4]}")
        assert main(["train", *given]) == 0
    return path


def predicted(folder: Path, kind: str, output: Path, *flags: str) -> int:
    data = next(folder.glob(f"{kind}.*"))
    return main(["predict", str(folder / f"run_{kind}"), "--data", str(data), "--output", str(output), *flags])


def test_a_table_is_csv_and_parquet_with_the_numbers_of_netcdf(folder: Path, tmp_path: Path) -> None:
    for name in ("p.nc", "p.csv", "p.parquet"):
        assert predicted(folder, "rows", tmp_path / name) == 0
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        stored = {name: file[name][:].data for name in ("b", "b_predicted", "db_da")}
        words = np.array(file["sample_role"].flag_meanings.split())[file["sample_role"][:]]
    for table in (csv.read_csv(tmp_path / "p.csv"), parquet.read_table(tmp_path / "p.parquet")):
        assert table["grid_index"].to_pylist() == [*range(5), *range(6, 200)]
        for name, values in stored.items():
            kept = values if len(values) == 199 else np.delete(values, 5)
            np.testing.assert_array_equal(table[name].to_numpy().astype("f4"), kept)
        assert table["sample_role"].to_pylist() == (words if len(words) == 199 else np.delete(words, 5)).tolist()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.csv", "p.nc", "p.parquet"]


def test_a_grid_is_a_store_with_its_coordinates_and_rows_of_dates_and_levels(folder: Path, tmp_path: Path) -> None:
    for name in ("p.nc", "p.zarr", "p.csv"):
        assert predicted(folder, "grid", tmp_path / name) == 0
    with (
        xarray.open_dataset(tmp_path / "p.nc") as right,
        xarray.open_zarr(tmp_path / "p.zarr", consolidated=False) as found,
    ):
        xarray.testing.assert_equal(found.load(), right.load())
        flat = right["s_predicted"].isel(depth=1).values.reshape(-1)
    table = csv.read_csv(tmp_path / "p.csv", convert_options=csv.ConvertOptions(column_types={"time": "string"}))
    np.testing.assert_array_equal(table["s_predicted[depth=10]"].to_numpy().astype("f4"), flat)
    assert table["time"].to_pylist()[20] == "2001-01-02T06:00:00"
    assert table["lat"].to_pylist()[:6] == [0, 0, 0, 0, 0, 1]


def test_other_endings_are_refused_and_nothing_is_left(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("p.txt", "p"):
        assert predicted(folder, "rows", tmp_path / name) == 2
        assert (
            f"{name}: cannot be written (the ending determines the format: .nc, .nc4, .h5, .hdf5, .csv, .parquet, .zarr"
            in capsys.readouterr().err
        )
    assert predicted(folder, "grid", tmp_path / "p.csv", "--layout", "grid") == 2
    assert predicted(folder, "rows", tmp_path / "p.csv", "--maps", str(tmp_path / "maps")) == 2
    asked = "variables.input_variables=[a]", "variables.output_variables=[b]", "--output"
    for name in ("d.nc", "d.zarr", "d.csv"):
        assert main(["data", "convert", str(folder / "rows.csv"), *asked, str(tmp_path / name)]) == 2
        assert (
            f"{name}: cannot be written (the ending determines the format: .npz, .h5, .hdf5, none, for a folder (no dot"
            in capsys.readouterr().err
        )
    for name in ("e.txt", "e", "e.nc"):
        assert main(["export", str(folder / "run_rows"), "--output", str(tmp_path / name)]) == 2
        assert (
            f"{name}: cannot be written (the ending determines the format: .pt, .pth, .ts, .pt2, .onnx, .c,"
            in capsys.readouterr().err
        )
    assert main(["export", str(folder / "run_rows"), "--format", "onnx", "--output", str(tmp_path / "e.c")]) == 2
    given = "--data", str(folder / "rows.csv"), *asked[:2], *TINY, "--output", str(tmp_path / "run")
    assert main(["train", *given, f"prediction.output_filename={tmp_path}/p.txt"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_what_its_ending_says(folder: Path, tmp_path: Path) -> None:
    first = {"e.c": b"/*", "e.hpp": b"/*", "e.f90": b"!", "e.pt": b"PK", "e.pt2": b"PK"}
    for name, mark in first.items():
        assert main(["export", str(folder / "run_rows"), "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(mark), name


def test_its_own_predictions_are_replaced_and_others_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    for name in ("p.csv", "p.zarr", "p.parquet"):
        assert predicted(folder, "rows", tmp_path / name) == 0
        assert predicted(folder, "rows", tmp_path / name) == 0
    for _ in range(2):
        assert predicted(folder, "grid", tmp_path / "levels.csv") == 0
    (tmp_path / "mine.csv").write_text('"","x","y_predicted"\n1,2,3\n')
    assert predicted(folder, "rows", tmp_path / "mine.csv") == 2
    assert predicted(folder, "rows", tmp_path / "mine.csv", "--overwrite") == 0
    (tmp_path / "q.zarr").mkdir()
    (tmp_path / "q.zarr" / "mine").touch()
    assert predicted(folder, "rows", tmp_path / "q.zarr", "--overwrite") == 2
    assert (tmp_path / "q.zarr" / "mine").exists()
    (tmp_path / "link.zarr").symlink_to(tmp_path / "p.zarr")
    assert predicted(folder, "rows", tmp_path / "link.zarr", "--overwrite") == 2


def test_a_store_that_is_read_is_never_replaced(folder: Path, tmp_path: Path) -> None:
    with xarray.open_dataset(folder / "grid.nc") as data:
        data.to_zarr(tmp_path / "grid.zarr", consolidated=False)
    words = "predict", str(folder / "run_grid"), "--data", str(tmp_path / "grid.zarr"), "--overwrite"
    assert main([*words, "--output", str(tmp_path / "grid.zarr")]) == 2
    with xarray.open_zarr(tmp_path / "grid.zarr", consolidated=False) as kept:
        assert set(kept.data_vars) == {"t", "s"}
    assert main([*words, "--output", str(tmp_path / "other.zarr")]) == 0


def write_rows(path: Path) -> None:
    """Rows with a number of days and no times at first, and levels that differ in the seventh digit, or not at all."""
    with netCDF4.Dataset(str(path), "w") as file:
        file.createDimension("n", 5)
        file.createDimension("plev", 2)
        file.createDimension("z", 2)
        for name, units in (("time", "days since 2001-01-01"), ("s_error", "days since 2000-01-01"), ("b", "1")):
            file.createVariable(name, "f8", ("n",), fill_value=-9.0).units = units
        file["time"][:] = np.ma.masked_less([-1, -1, -1, 0.5, 1], 0)
        file["s_error"][:] = [-0.8, 1, np.inf, np.nan, 3]
        file["b"][:] = np.ma.masked_greater(np.arange(5.0), 3)
        file.createVariable("plev", "f8", ("plev",))[:] = [1000001.0, 1000002.0]
        file.createVariable("z", "f8", ("z",))[:] = [7.0, 7.0]
        for name, along in (("t", "plev"), ("u", "z")):
            file.createVariable(name, "f4", ("n", along))[:] = np.arange(10.0).reshape(5, 2)


def test_columns_are_times_alone_as_dates_and_each_level_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_formats, "_ROWS_AT_ONCE", 2)
    write_rows(tmp_path / "w.nc")
    for name in ("r.csv", "r.parquet"):
        other_formats.write_in_format(tmp_path / "w.nc", tmp_path / name)
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table["time"].to_pylist() == [None, None, None, "2001-01-01T12:00:00", "2001-01-02T00:00:00"]
    assert table["s_error"].to_pylist() == [-0.8, 1, np.inf, None, 3]
    assert table["b"].to_pylist() == [0, 1, 2, 3, None]
    levels = ["t[plev=1000001]", "t[plev=1000002]", "u[0]", "u[1]"]
    assert [table[name].to_pylist()[1] for name in levels] == [2, 3, 2, 3]
    assert csv.read_csv(tmp_path / "r.csv").column_names == table.column_names


def test_ranks_write_the_same_rows_and_a_training_predicts_to_csv(folder: Path, tmp_path: Path) -> None:
    assert predicted(folder, "rows", tmp_path / "p.csv") == 0
    words = ["-m", "mpitrain", "predict", str(folder / "run_rows"), "--data", str(folder / "rows.csv")]
    done = launch([*words, "--output", str(tmp_path / "q.csv")], 3)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "q.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()
    given = "--data", str(folder / "rows.csv"), "variables.input_variables=[a]", "variables.output_variables=[b]", *TINY
    assert (
        main(["train", *given, "--output", str(tmp_path / "run"), f"prediction.output_filename={tmp_path}/t.csv"]) == 0
    )
    assert csv.read_csv(tmp_path / "t.csv").num_rows == 199
