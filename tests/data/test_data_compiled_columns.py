"""Tables of samples filled by compiled code have the bits of numpy's way, value by value."""

import itertools

import numpy as np
import pytest
from field_files import config_of, read_all, write_netcdf

from mpitrain.data.files.compiled import build, columns
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.data.units import Conversion

DTYPES = ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<f4", ">f4", "<f8", ">f8"]
ATTRIBUTES = [
    {},
    {"_FillValue": 7},
    {"_FillValue": 1.5, "missing_value": (3, 100, 1e30)},
    {"_FillValue": -1, "_Unsigned": "true"},
    {"_FillValue": 1.1, "scale_factor": 0.1, "add_offset": 273.15},
    {"scale_factor": 1e-3, "valid_range": (-50, 90)},
    {"scale_factor": 0.01, "add_offset": -3.0, "valid_range": (-2.9, 0.7), "_FillValue": 5},
    {"valid_min": -20.05, "missing_value": -1},
    {"valid_max": 1.1},
    {"scale_factor": 1e28},
    {"add_offset": 0.1, "_Unsigned": "true", "valid_max": 200},
]
TYPES = {"a": "<f4", "b": ">f8", "c": "<i2", "d": "<i8"}
SPECIAL = [0.0, -0.0, 1.1, 1.5, 3, 5, 7, 100, -1, -9.5, 1e29, -1e29, 1e30, 9.9e28, np.inf, -np.inf, np.nan, 1e-40]


def numbers(dtype, count=2500):
    """Values of the whole range of a type, with those that attributes name."""
    dtype, random = np.dtype(dtype), np.random.default_rng(5)
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, count, dtype=dtype.newbyteorder("="), endpoint=True)
        values[: count // 2] = random.integers(0, 110, count // 2)
        return values.astype(dtype)
    values = random.standard_normal(count) * 30
    values[: len(SPECIAL)] = SPECIAL
    return values.astype(dtype)


@pytest.fixture
def kernels(monkeypatch):
    """The compiled code, from the first byte on."""
    monkeypatch.setattr(build, "WORTH_BUILDING_BYTES", 0)
    monkeypatch.setattr(columns, "KERNELS", build.ReadingKernels())


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("out", [np.float32, np.float64])
def test_same_bits_as_numpy(kernels, out):
    rows = np.random.default_rng(2).permutation(2500)[:1100]
    cases = list(itertools.product(DTYPES, ATTRIBUTES, (None, Conversion(1.8, 32.0))))
    for chosen in (None, rows):
        expected, given = [], []
        for dtype, attributes, conversion in cases:
            stored = numbers(dtype)
            info = VariableInfo("v", ("x",), stored.shape, dtype, attributes, default_fill=-127)
            access = VariableAccess(info, None, 0, conversion)
            expected.append(access.decode(stored if chosen is None else stored[chosen]).astype(out))
            given.append(access.column(stored))
        table = np.zeros((len(expected[0]), len(cases)), out)
        assert columns.fill_table(table, given, chosen)
        for number, (case, column) in enumerate(zip(cases, expected, strict=True)):
            assert table[:, number].tobytes() == column.tobytes(), case


def test_what_it_does_not_know_is_left_to_numpy(kernels):
    table, stored = np.zeros((3, 1), np.float32), np.arange(3.0)
    assert columns.fill_table(table, [columns.StoredColumn(stored)], None)
    assert table[:, 0].tolist() == [0, 1, 2]
    info = VariableInfo("v", ("x",), (3,), "<i8", {})
    assert VariableAccess(info, None).column(stored.astype("i8")) is None
    assert VariableAccess(info, None).column(stored.astype("f2")) is None
    many = VariableInfo("v", ("x",), (3,), "<f8", {"missing_value": tuple(range(1, 10))})
    assert not columns.fill_table(table, [VariableAccess(many, None).column(stored)], None)
    assert not columns.fill_table(np.zeros((3, 2), np.float32)[:, :1], [columns.StoredColumn(stored)], None)
    assert not columns.fill_table(table, [columns.StoredColumn(np.arange(6.0)[::2])], None)


@pytest.mark.parametrize("mask", ["domain.mask_mode=all", "domain.mask=a > 0"])
def test_samples_are_the_same_with_and_without_it(tmp_path, kernels, mask):
    shape = (3, 20, 30)
    values = {name: numbers(dtype, 1800).reshape(shape) for name, dtype in TYPES.items()}
    path = write_netcdf(
        tmp_path / "f.nc",
        {name: (("time", "nj", "ni"), one) for name, one in values.items()} | {"e": (("nj", "ni"), values["a"][0])},
        c={"scale_factor": 0.5, "_FillValue": 9},
    )
    found = {}
    for inputs in ("[a,b,c,e,a + b]", "[a,d]"):
        settings = [f"variables.input_variables={inputs}", "variables.output_variables=[a]", mask]
        source = open_source(selection_of(config_of(path, *settings)))
        for has_kernels in (True, False):
            columns.KERNELS._is_tried = not has_kernels
            columns.KERNELS._library = None
            samples = read_all(source)
            found[has_kernels] = [one.tobytes() for one in (samples.inputs, samples.targets, samples.grid_index)]
            assert len(samples) > 100
        assert found[True] == found[False]
        source.close()
