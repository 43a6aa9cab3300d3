"""What is missing is decided where numbers are read: masks, NaT, and limits beside numbers that were unpacked."""

from __future__ import annotations

from pathlib import Path

import dask.array
import netCDF4
import numpy as np
import pytest
import xarray
from field_files import config_of, in_memory, read_all, write_netcdf
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.files.absolute_time import numbers_of_array
from mpitrain.data.files.arrays import file_of
from mpitrain.data.samples import Samples
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError
from mpitrain.python.variables import _unpack_limits
from mpitrain.runs.prepare import prepare_on_samples

NOTHING = np.iinfo(np.int64).min
OBS = ("obs",)


def inputs_of(path: Path, *settings: str, name: str = "x") -> np.ndarray:
    names = f"variables.input_variables=[{name}]", "variables.output_variables=[y]"
    return read_all(open_source(selection_of(config_of(path, *names, *settings)))).inputs[:, 0]


LEADS = np.arange(10, dtype=np.int64)


@pytest.mark.parametrize("units", ["hours", "nanoseconds", "s", "seconds since 2000-01-01", "days since 1970-01-01"])
def test_the_smallest_integer_is_nat_in_units_of_time_alone(tmp_path, units):
    stored = LEADS.copy()
    stored[3] = NOTHING
    for name, own in (("time.nc", units), ("metres.nc", "m")):
        write_netcdf(tmp_path / name, {"x": (OBS, stored), "y": (OBS, LEADS * 1.0)}, x={"units": own})
    found = inputs_of(tmp_path / "time.nc")
    assert np.flatnonzero(np.isnan(found)).tolist() == [3]
    assert found[4:].tolist() == LEADS[4:].tolist()
    assert inputs_of(tmp_path / "metres.nc")[3] < -9e18


@pytest.mark.parametrize("ending", ["nc", "zarr", "npz", "parquet"])
def test_durations_with_gaps_are_numbers_and_nan(tmp_path, ending):
    leads = LEADS.astype("m8[h]").astype("m8[ns]")
    leads[3] = np.timedelta64("NaT")
    path = tmp_path / f"f.{ending}"
    data = xarray.Dataset({"x": (OBS, leads), "y": (OBS, LEADS * 1.0)})
    if ending == "npz":
        np.savez(path, x=leads, y=LEADS * 1.0)
    elif ending == "parquet":
        data.to_dataframe().to_parquet(path)
    else:
        data.to_netcdf(path) if ending == "nc" else data.to_zarr(path, consolidated=False)
    found = inputs_of(path)
    assert np.flatnonzero(np.isnan(found)).tolist() == [3]
    hours = LEADS * (1.0 if ending in ("nc", "zarr") else 1 / 24)  # xarray takes hours, numpy's types become days
    assert found[4:] == pytest.approx(hours[4:], rel=1e-6)


def test_a_time_level_without_a_time_has_no_month(tmp_path):
    times = LEADS * 31
    times[3] = NOTHING
    variables = {"time": (("time",), times), "y": (("time",), LEADS * 1.0)}
    path = write_netcdf(tmp_path / "f.nc", variables, time={"units": "days since 2001-01-01"})
    found = inputs_of(path, name="month")
    assert np.flatnonzero(np.isnan(found)).tolist() == [3]
    assert found[:3].tolist() == [1, 2, 3]


MASK = LEADS % 4 == 1


@pytest.mark.parametrize(
    "values",
    [
        LEADS * 1.0,
        LEADS.astype("f4"),
        LEADS,
        LEADS.astype("i2"),
        LEADS > 4,
        LEADS.astype("M8[D]"),
        LEADS.astype("m8[D]"),
    ],
    ids=lambda values: values.dtype.str,
)
def test_what_a_mask_hides_is_missing_wherever_arrays_are_taken_over(tmp_path, values):
    hidden = values.copy()
    hidden[MASK] = values[0]
    masked = np.ma.masked_array(hidden, mask=MASK)
    handed_over = inputs_of(in_memory(tmp_path, {"x": masked, "y": LEADS * 1.0}))
    file = file_of(tmp_path / "own", {"x": (OBS, masked), "plain": (OBS, hidden)})
    of_reader = file.read_stored("x", (slice(None),)).astype("f4")
    for found in (handed_over, of_reader):
        assert np.flatnonzero(np.isnan(found)).tolist() == np.flatnonzero(MASK).tolist()
        assert found[~MASK].tolist() == (values if values.dtype.kind in "biuf" else LEADS)[~MASK].tolist()
    assert not np.isnan(file.read_stored("plain", (slice(None),)).astype("f4")).any()


@pytest.mark.parametrize("limits", [{"valid_min": 0, "valid_max": 300}, {"valid_range": [0, 300]}])
@pytest.mark.parametrize(
    "packing",
    [{"scale_factor": 0.1}, {"scale_factor": 10.0, "add_offset": 250.0}, {"scale_factor": -0.5, "add_offset": 10.0}],
)
def test_limits_of_packed_numbers_are_those_of_the_numbers_that_xarray_unpacks(tmp_path, limits, packing):
    path, packed = tmp_path / "packed.nc", np.array([-2, 0, 1, 299, 300, 302], "i2")
    with netCDF4.Dataset(str(path), "w") as file:
        file.createDimension("obs", len(packed))
        variable = file.createVariable("x", "i2", OBS, fill_value=-1)
        variable.setncatts({**packing, **{name: np.array(value, "i2") for name, value in limits.items()}})
        variable.set_auto_maskandscale(False)
        variable[:] = packed
        file.createVariable("y", "f4", OBS)[:] = np.arange(len(packed))
    expected = inputs_of(path)
    assert np.isnan(expected).tolist() == [True, False, False, False, False, True]
    with xarray.open_dataset(path) as dataset:
        handed_over = in_memory(tmp_path, dataset)
        assert dataset.x.attrs["valid_min" if "valid_min" in limits else "valid_range"] is not None
    np.testing.assert_allclose(inputs_of(handed_over), expected, rtol=1e-6)


PRESSURES = 101325.0 + 0.002 * np.random.default_rng(0).normal(size=2000)


@pytest.mark.parametrize("packed", [False, True])
def test_a_derived_variable_is_of_the_numbers_of_the_file_not_of_their_float32(tmp_path, packed):
    stored = np.round((PRESSURES - 101325.0) * 1e6).astype("i4") if packed else PRESSURES
    attributes = {"scale_factor": 1e-6, "add_offset": 101325.0} if packed else {}
    variables = {"p": (("time",), stored), "y": (("time",), np.arange(2000.0))}
    path = write_netcdf(tmp_path / "f.nc", variables, p=attributes)
    exact = PRESSURES - 101325.0
    assert len(np.unique(inputs_of(path, name="p"))) < 5
    assert inputs_of(path, name="'p - 101325'") == pytest.approx(exact, abs=1e-6)
    assert inputs_of(path, name="'p[row-1] - 101325'") == pytest.approx(exact[:-1], abs=1e-6)
    assert len(np.unique(inputs_of(path, "data.rules=1", name="'p - 101325'"))) < 5


@pytest.mark.parametrize(
    ("offset", "deviation", "is_coarse"),
    [(101325.0, 0.002, True), (101325.0, 0.0, True), (101325.0, 9.0, False), (0.0, 1e-9, False), (1.0, 0.0, False)],
)
def test_values_of_which_float32_keeps_few_are_named_with_what_to_write(offset, deviation, is_coarse):
    values = offset + deviation * np.random.default_rng(0).normal(size=(500, 1))
    targets = np.arange(500.0, dtype="f4")[:, None]
    samples = Samples(values.astype("f4"), targets, np.arange(500), ("p",), ("y",))
    config = load_run_config(None, ["data.validation_split=0", "model.name=mlp"]).config

    def notices(communicator):
        ranks = played_ranks_of(communicator)
        return prepare_on_samples(config, take_share(samples, ranks), ranks).notices

    found = [line for line in on_played_ranks(1, notices)[0] if "float32" in line]
    assert ["resolves p coarsely (p: " in line and line.endswith("as 'p - 101325'") for line in found] == [
        True
    ] * is_coarse


@pytest.mark.parametrize(
    ("attributes", "encoding", "left"),
    [
        ({"valid_max": np.float32(40)}, {"scale_factor": 0.01}, {"valid_max": np.float32(40)}),
        ({"valid_range": "0, 100"}, {"scale_factor": 0.01}, {}),
        ({"valid_range": np.array([0, 1, 2])}, {"scale_factor": 0.01}, {}),
        ({"valid_max": 40}, {"scale_factor": np.array([2.0])}, {"valid_max": 81.0}),
        ({"valid_range": np.array([0, -2], "i1")}, {"scale_factor": 1.0, "_Unsigned": "true"},
         {"valid_min": -0.5, "valid_max": 254.5}),
        ({"valid_max": 40}, {"dtype": "i2"}, {"valid_max": 40}),
        ({"units": "m"}, {"scale_factor": None, "add_offset": [1.0]}, {"units": "m"}),
    ],
)  # fmt: skip
def test_limits_that_are_not_packed_or_no_numbers_are_not_unpacked(attributes, encoding, left):
    _unpack_limits(attributes, encoding)
    assert attributes == left


@pytest.mark.parametrize("kind", ["dask", "netCDF4", "list"])
def test_masks_of_lazy_arrays_and_of_lists_are_kept(tmp_path, kind):
    masked = np.ma.masked_array(LEADS.reshape(5, 2), mask=MASK.reshape(5, 2))
    with netCDF4.Dataset(str(tmp_path / "f.nc"), "w") as file:
        for name, size in (("a", 5), ("b", 2)):
            file.createDimension(name, size)
        file.createVariable("x", "i4", ("a", "b"))[:] = masked
        given = {"dask": dask.array.from_array(masked), "netCDF4": file["x"], "list": list(masked)}[kind]
        found, _ = numbers_of_array(given)
    assert np.array_equal(np.isnan(found), masked.mask)


def test_durations_of_months_are_no_numbers_and_hinder_nothing(tmp_path):
    np.savez(tmp_path / "f.npz", x=LEADS * 1.0, y=LEADS * 1.0, span=LEADS.astype("m8[M]"))
    assert inputs_of(tmp_path / "f.npz").tolist() == LEADS.tolist()
    with pytest.raises(DataError, match=r"'span' holds .*, expected numbers"):
        inputs_of(tmp_path / "f.npz", name="span")


def test_what_has_no_time_is_that_of_the_first_file_in_derived_variables_too(tmp_path):
    for number, height in enumerate((101325.0, 101325.09)):
        variables = {"s": ((), np.array(height)), "y": (("time",), np.arange(3.0))}
        write_netcdf(tmp_path / f"{number}.nc", variables)
    path = tmp_path / "?.nc"
    assert inputs_of(path, name="'s - 101324'").tolist() == [1.0] * 6
