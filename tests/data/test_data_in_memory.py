"""Data in memory: what Datasets, DataFrames and dicts of arrays hold is read, or named as what it is."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pandas
import pytest
import xarray
from field_files import config_of, in_memory, read_all

from mpitrain.data import VARIABLES_FILE, Asked, GivenVariable, VariableInfo, write_variables
from mpitrain.data.selection.coordinates import known_ranks, open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, UserError
from mpitrain.python.settings import needed_variables
from mpitrain.python.variables import variables_of

NUM_ROWS = 96
A = np.random.default_rng(6).normal(size=NUM_ROWS)
HOURS = pandas.date_range("2001-01-01", periods=NUM_ROWS, freq="h")
FRAME = pandas.DataFrame({"a": A, "b": 2 * A})


def source_of(folder: Path, data: Any, inputs: str = "a", *settings: str) -> SampleSource:
    names = f"variables.input_variables=[{inputs}]", "variables.output_variables=[b]"
    return open_source(selection_of(config_of(in_memory(folder, data), *names, *settings)))


def inputs_of(folder: Path, data: Any, inputs: str = "a", *settings: str) -> np.ndarray:
    return read_all(source_of(folder, data, inputs, *settings)).inputs


INDICES = {
    "named": HOURS.rename("when"), "unnamed": HOURS, "zone": HOURS.tz_localize("UTC").rename("when"),
    "unnamed zone": HOURS.tz_localize("UTC"), "periods": HOURS.to_period("h").rename("when"),
    "unnamed periods": HOURS.to_period("h"), "seconds": HOURS.astype("datetime64[s]"),
    "levels": pandas.MultiIndex.from_arrays([HOURS, ["x", "y"] * 48]),
    "named levels": pandas.MultiIndex.from_arrays([["x", "y"] * 48, HOURS], names=["station", "when"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", INDICES)
def test_times_of_an_index_are_those_of_the_rows(tmp_path, kind):
    source = source_of(tmp_path, FRAME.set_index(INDICES[kind]), "a, hour_of_day")
    assert read_all(source).inputs[:, 1].tolist() == [hour % 24 for hour in range(NUM_ROWS)]
    assert known_ranks(source).tolist() == list(range(NUM_ROWS))


@pytest.mark.parametrize("place", ["index", "column"])
def test_times_of_a_zone_are_those_of_utc_with_a_line(tmp_path, place):
    india = HOURS.tz_localize("Asia/Kolkata")
    data = FRAME.set_index(india) if place == "index" else FRAME.assign(when=india)
    source = source_of(tmp_path, data, "a, hour_of_day")
    assert read_all(source).inputs[0, 1] == 18.5
    assert [line for line in source.notices if "times with time zone Asia/Kolkata" in line]


COLUMNS = {
    "Int64": (pandas.array([None, *range(1, NUM_ROWS)], dtype="Int64"), [np.nan, *range(1, NUM_ROWS)]),
    "boolean": (pandas.array([None, *[True, False] * 47, True], dtype="boolean"), [np.nan, *[1, 0] * 47, 1]),
    "Float32": (pandas.array([None, *[0.5] * 95], dtype="Float32"), [np.nan, *[0.5] * 95]),
    "pyarrow": (pandas.array([None, *[1.5] * 95], dtype="double[pyarrow]"), [np.nan, *[1.5] * 95]),
    "decimal": ([None, *[decimal.Decimal("0.125")] * 95], [np.nan, *[0.125] * 95]),
    "categories": (pandas.Categorical([None, *[7, 9] * 47, 7]), [np.nan, *[7, 9] * 47, 7]),
    "text": (["N/A", *["1.25"] * 95], [np.nan, *[1.25] * 95]),
    "durations": (pandas.to_timedelta([None, *range(1, NUM_ROWS)], "D"), [np.nan, *range(1, NUM_ROWS)]),
    "sparse": (pandas.arrays.SparseArray([np.nan, *range(1, NUM_ROWS)]), [np.nan, *range(1, NUM_ROWS)]),
    "float16": (np.array([np.nan, *[0.5] * 95], "f2"), [np.nan, *[0.5] * 95]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_each_type_are_read(tmp_path, kind):
    column, expected = COLUMNS[kind]
    np.testing.assert_array_equal(inputs_of(tmp_path, FRAME.assign(a=column))[:, 0], expected)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (A + 1j, r"data.*variable 'a' is not read: it holds complex128, expected numbers"),
        (["x", "y"] * 48, r"variable 'a' holds text, such as 'x', expected numbers; name another"),
        (["---", *map(str, A[1:])], r"holds '---' in row 1, not a number; if it means a missing value, set"),
        ([[1, 2]] * NUM_ROWS, r"variable 'a' holds text, such as '\[1, 2\]', expected numbers"),
        (["x" * 1_000_000, *["y"] * 95], r"variable 'a' is not read: it holds .*text of up to 1000000 characters"),
    ],
)
def test_columns_that_are_no_numbers_are_named_and_stop_nothing_beside(tmp_path, column, words):
    with pytest.raises(DataError, match=words):
        inputs_of(tmp_path, FRAME.assign(a=column))
    assert len(inputs_of(tmp_path, FRAME.assign(c=column))) == NUM_ROWS


def test_names_that_stand_for_two_columns_are_refused(tmp_path):
    with pytest.raises(UserError, match="data: 'a' is both a column and in the index, or twice in the"):
        source_of(tmp_path, FRAME.rename_axis("a"))
    with pytest.raises(DataError, match="variable 'a' is not read: 2 columns have this name"):
        source_of(tmp_path, pandas.concat([FRAME, FRAME[["a"]]], axis=1))
    with pytest.raises(UserError, match="data: list cannot be read; give an xarray Dataset"):
        source_of(tmp_path, [1, 2])
    with pytest.raises(UserError, match=r"'a' has shape \(96,\), 'b' \(95,\); give arrays with equal first"):
        source_of(tmp_path, {"a": A, "b": A[1:]})


ATTRIBUTES = [None, {"k": 1}, True, [None, 1], {1, 2}, np.float16(2), decimal.Decimal(1)]


@pytest.mark.parametrize("value", ATTRIBUTES, ids=repr)
def test_attributes_that_no_file_holds_stop_nothing(tmp_path, value):
    data = xarray.Dataset({"a": ("obs", A, {"source": value, "x/y": 1}), "b": ("obs", 2 * A)}, attrs={"history": value})
    assert inputs_of(tmp_path, data)[:, 0] == pytest.approx(A, rel=1e-6)
    assert data.a.attrs["source"] is value


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", "i1", "u2", "i8", "?"])
def test_numbers_of_a_dataset_keep_their_values(tmp_path, dtype):
    values = np.arange(NUM_ROWS).astype(dtype)
    data = xarray.Dataset({"a": ("obs", values), "b": ("obs", A)})
    assert inputs_of(tmp_path, data)[:, 0].tolist() == values.astype("f8").tolist()


def test_only_what_the_settings_name_is_computed(tmp_path):
    def fail(block):
        raise RuntimeError("computed")

    lazy = dask.array.from_array(A, chunks=10)
    unused = lazy.map_blocks(fail, dtype=float, meta=np.empty(0))
    data = xarray.Dataset(
        {"a": ("obs", lazy), "b": ("obs", 2 * lazy), "unused": ("obs", unused), "ab": ("obs", unused)},
        coords={"when": ("obs", HOURS)},
    )
    asked = needed_variables(None, ["variables.input_variables=[a, hour_of_day]", "variables.output_variables=[b]"])
    path = in_memory(tmp_path, data, asked)
    names = "variables.input_variables=[a, hour_of_day]", "variables.output_variables=[b]"
    found = read_all(open_source(selection_of(config_of(path, *names)))).inputs
    assert found[:, 0] == pytest.approx(A, rel=1e-6)
    assert found[:, 1].tolist() == [hour % 24 for hour in range(NUM_ROWS)]


def infos(*names: str, **attributes: dict[str, str]) -> list[VariableInfo]:
    return [VariableInfo(name, ("x",), (3,), "<f8", attributes.get(name, {})) for name in names]


def test_levels_derived_variables_and_masks_are_named_by_the_settings():
    known = infos("u", "v", "w", "x", "y", "land", "area", "other", "un", "lan", p={})
    inputs = "variables.input_variables=['u[z=0..2]', 'v - w', 'x[time-1]', month]"
    settings = [inputs, "variables.output_variables=[y]",
                "domain.mask=land == 0", "data.area_variable=area", "training.area_weighted_loss=true"]  # fmt: skip
    assert needed_variables(None, settings).among(known) == {"u", "v", "w", "x", "y", "land", "area"}
    every = {one.name for one in known}
    assert needed_variables(None, [*settings, "variables.output_variables=[sea_ice_fraction]"]).among(known) == every
    assert needed_variables(None, []).among(known) == every


def test_standard_names_beside_others_places_times_and_counts_are_found():
    known = infos(
        "t2m", "p", "when", "la", "n", "umask", "bnds", "big",
        t2m={"standard_name": "air_temperature", "bounds": "bnds"},
        when={"units": "days since 2000-01-01"}, la={"units": "degrees_north"}, n={"sample_dimension": "obs"},
    )  # fmt: skip
    for name in ("air_temperature - p", "air_temperature[time-1]"):
        asked = needed_variables(None, [f"variables.input_variables=['{name}']", "variables.output_variables=[p]"])
        assert asked.among(known) == {"t2m", "p", "when", "la", "n", "umask", "bnds"}


def test_places_bounds_and_times_come_along(tmp_path):
    grid = ("time", "lat", "lon")
    data = xarray.Dataset(
        {"a": (grid, A.reshape(4, 4, 6)), "b": (grid, A.reshape(4, 4, 6)), "text": ("lat", list("abcd"))},
        coords={
            "time": pandas.date_range("2001-01-31", periods=4, freq="ME"),
            "lat": ("lat", np.arange(4.0), {"units": "degrees_north"}),
            "lon": np.arange(6.0), "place": ("lat", list("abcd")),
        },
    )  # fmt: skip
    source = source_of(tmp_path, data, "a, month")
    assert read_all(source).inputs[::24, 1].tolist() == [1, 2, 3, 4]
    assert open_coordinates(source).grids["lat"][:, 0].tolist() == [0, 1, 2, 3]


def test_scalars_empty_arrays_and_masks_of_a_dict(tmp_path):
    data = {"a": np.ma.masked_array(A, mask=A > 1), "b": A, "inputs": np.empty((NUM_ROWS, 0))}
    assert np.isnan(inputs_of(tmp_path, data)[:, 0]).tolist() == (A > 1).tolist()
    scalar = xarray.Dataset({"a": ("obs", A), "b": ("obs", A), "height": ((), 2.0)})
    assert inputs_of(tmp_path, scalar, "a, height")[:, 1].tolist() == [2.0] * NUM_ROWS


def test_what_takes_more_than_small_files_may_claim_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mpitrain.data.files.variable.MOST_OF_SMALL_FILE_BYTES", 1000)
    large = np.arange(3_000_000.0)
    assert inputs_of(tmp_path, {"a": large, "b": large})[-1, 0] == 2_999_999


def test_blocks_of_dask_are_written_by_other_processes_and_keep_their_masks(tmp_path):
    masked = np.ma.masked_array(np.arange(40), mask=np.arange(40) % 7 == 3)
    data = xarray.Dataset({"b": ("obs", dask.array.arange(40.0, chunks=7))})
    given = [*variables_of(data, Asked()), GivenVariable("a", dask.array.from_array(masked, chunks=7), ("obs",))]
    (tmp_path / "mpitrain-x").mkdir()
    with dask.config.set(scheduler="processes", num_workers=2):
        write_variables(tmp_path / "mpitrain-x", given)
    names = "variables.input_variables=[a]", "variables.output_variables=[b]"
    found = read_all(open_source(selection_of(config_of(tmp_path / "mpitrain-x" / VARIABLES_FILE, *names))))
    assert found.targets[:, 0].tolist() == list(range(40))
    assert np.flatnonzero(np.isnan(found.inputs[:, 0])).tolist() == np.flatnonzero(masked.mask).tolist()


@pytest.mark.parametrize("order", ["F", "strided", "reversed"])
def test_arrays_in_any_order_of_memory_keep_their_places(tmp_path, order):
    values = np.arange(96.0 * 8).reshape(96, 8)
    other = {"F": np.asfortranarray(values), "strided": np.repeat(values, 2, 1)[:, ::2], "reversed": values[::-1][::-1]}
    found = inputs_of(tmp_path, {"a": other[order], "b": A}, "'a[:, 5]'")
    assert found[:, 0].tolist() == values[:, 5].tolist()


def test_times_and_places_that_are_no_coordinates_are_read(tmp_path):
    table = FRAME.assign(when=HOURS, lat=np.linspace(-9, 9, NUM_ROWS), lon=np.linspace(5, 6, NUM_ROWS))
    data = table.to_xarray()
    names = "variables.input_variables=[a, hour_of_day]", "variables.output_variables=[b]"
    path = in_memory(tmp_path, data, needed_variables(None, [*names]))
    source = open_source(selection_of(config_of(path, *names, "domain.latitude_range=[0, 90]")))
    assert len(read_all(source)) == 48
    assert set(open_coordinates(source).attributes) == {"lat", "lon", "time"}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.assign_coords(when=("obs", HOURS, {"units": "hours", "calendar": "x"})),
        lambda data: data.assign_attrs({1: 2, "x": [1, [2, 3]]}),
        lambda data: data.assign(a=data.a.assign_attrs({"x": [1, [2, 3]], "coordinates": 5})),
        lambda data: data.assign_coords(zone=("obs", HOURS.tz_localize("UTC"))),
        lambda data: data.assign(none=("obs", np.array([{}] * NUM_ROWS, dtype=object))),
        lambda data: pandas.DataFrame({"a": A, "b": 2 * A}).convert_dtypes().to_xarray(),
    ],
)
def test_odd_attributes_and_types_stop_nothing(tmp_path, change):
    data = change(xarray.Dataset({"a": ("obs", A), "b": ("obs", 2 * A)}))
    assert inputs_of(tmp_path, data)[:, 0] == pytest.approx(A, rel=1e-6)


def test_periods_and_calendars_are_times_in_datasets_and_frames(tmp_path):
    cftime = xarray.date_range("2001-02-01", periods=NUM_ROWS, freq="D", calendar="360_day", use_cftime=True)
    for data in (FRAME.set_index(cftime), FRAME.assign(when=cftime)):
        source = source_of(tmp_path, data, "month")
        assert read_all(source).inputs[:, 0].tolist() == [2 + day // 30 for day in range(NUM_ROWS)]
    periods = xarray.Dataset({"a": ("t", A), "b": ("t", A)}, coords={"t": HOURS.to_period("h")})
    assert inputs_of(tmp_path, periods, "hour_of_day")[:, 0].tolist() == [hour % 24 for hour in range(NUM_ROWS)]
    both = FRAME.set_index(pandas.MultiIndex.from_arrays([HOURS, HOURS + pandas.Timedelta(days=1)]))
    assert inputs_of(tmp_path, both, "hour_of_day")[:, 0].tolist() == [hour % 24 for hour in range(NUM_ROWS)]
    dates = FRAME.set_index(pandas.Index([one.date() for one in HOURS]))
    assert inputs_of(tmp_path, dates, "month").tolist() == [[1.0]] * NUM_ROWS


def test_lists_tensors_bytes_and_truth_values_of_a_dict(tmp_path):
    torch = pytest.importorskip("torch")
    data = {
        "a": torch.tensor(A, requires_grad=True), "b": A, "c": [[1], [1, 2]] * 48, "d": np.array([b"1.5"] * NUM_ROWS),
        "e": np.array([True, None] * 48, dtype=object),
    }  # fmt: skip
    found = inputs_of(tmp_path, data, "a, d, e")
    assert found[:, 0] == pytest.approx(A, rel=1e-6)
    assert found[:, 1].tolist() == [1.5] * NUM_ROWS
    np.testing.assert_array_equal(found[:, 2], [1, np.nan] * 48)
    with pytest.raises(DataError, match="variable 'c' is not read: it cannot be read as an array"):
        inputs_of(tmp_path, data, "c")


def test_masks_that_the_type_of_an_array_cannot_hold_are_named(tmp_path):
    hidden = dask.array.from_array(np.arange(40), chunks=10).map_blocks(
        lambda block: np.ma.masked_array(block, mask=block % 7 == 3), dtype=int, meta=np.empty(0, int)
    )
    data = xarray.Dataset({"a": ("obs", hidden), "b": ("obs", np.arange(40.0))})
    with pytest.raises(DataError, match=r"variable 'a' is not read: its values cannot be read .*mask"):
        inputs_of(tmp_path, data)
    objects = {"a": np.array([1, pandas.NA, 3] * 32, dtype=object), "b": A}
    assert np.isnan(inputs_of(tmp_path, objects)[:, 0]).tolist() == [False, True, False] * 32
