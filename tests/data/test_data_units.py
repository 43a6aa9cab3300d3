"""Units: the same by another spelling, converted, refused, or not known."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from field_files import TIMES, config_of, ramp, read_all, write_netcdf

from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.units import Conversion, find_conversion
from mpitrain.errors import DataError

CONVERTED = [
    ("degC", "K", Conversion(1.0, 273.15)),
    ("C", "K", Conversion(1.0, 273.15)),
    ("K", "degC", Conversion(1.0, -273.15)),
    ("%", "1", Conversion(0.01, 0.0)),
    ("hPa", "Pa", Conversion(100.0, 0.0)),
    ("g kg-1", "psu", None),
    ("J m**-2", "kJ m-2", Conversion(0.001, 0.0)),
]


@pytest.mark.parametrize(("units", "wanted", "expected"), CONVERTED)
def test_what_can_be_converted_is(units, wanted, expected):
    pytest.importorskip("cf_units")
    assert find_conversion(units, wanted, "x") == expected


SAME = [("m s**-1", "m s-1"), ("W m-2", "W m^-2"), ("m.s-1", "m s-1"), ("", "K"), ("K", ""), ("none", "1")]


@pytest.mark.parametrize(("units", "wanted"), SAME)
def test_spellings_of_one_unit_need_no_library(units, wanted, monkeypatch):
    monkeypatch.setitem(sys.modules, "cf_units", None)
    assert find_conversion(units, wanted, "x") is None
    with pytest.raises(DataError, match=r"x has units 'degC', expected 'K'; install .*pip install cf-units"):
        find_conversion("degC", "K", "x")


@pytest.mark.parametrize(("units", "wanted"), [("kg", "m"), ("K", "furlongs per"), ("smoots", "m")])
def test_what_cannot_be_converted_is_refused(units, wanted):
    with pytest.raises(DataError, match=r"x has units .* which cannot be converted to") as caught:
        find_conversion(units, wanted, "x")
    assert "\n" not in str(caught.value)


def test_files_in_other_units_are_read_in_those_that_are_wanted(tmp_path):
    grid, units = ("time", "nj", "ni"), {"y": {"units": "1"}}
    of_kelvin, of_celsius = {"x": (grid, ramp() + np.float32(273.15))}, {"x": (grid, ramp())}
    y = {"y": (grid, ramp())}
    kelvin = write_netcdf(tmp_path / "a.nc", of_kelvin | y, "", None, **units | {"x": {"units": "K"}})
    celsius = write_netcdf(tmp_path / "b.nc", of_celsius | y, "", None, **units | {"x": {"units": "degC"}})
    selection = selection_of(config_of(f"[{kelvin}, {celsius}]"))
    source = open_source(selection)
    assert source.units == {"x": "K", "y": "1"}
    assert [line for line in source.notices if "b.nc" in line] == [
        f"{celsius}: variable 'x' is converted from 'degC' to 'K'"
    ]
    values = read_all(source).inputs[:, 0].reshape(2, -1)
    assert np.allclose(values[0], values[1], rtol=1e-7)
    assert values[1][0] == np.float32(273.15)
    derived = config_of(celsius, "variables.input_variables=['x - 0', 'x[time-1]', x]")
    wanted = replace(selection_of(derived), units={"x": "K", "x[time-1]": "K", "y": ""})
    inputs = read_all(open_source(wanted)).inputs
    assert inputs[0].tolist() == [np.float32(293.15), np.float32(273.15), np.float32(293.15)]
    assert len(inputs) == (TIMES - 1) * 20
    fields = replace(wanted, kind="fields")
    assert np.isclose(read_all(open_source(fields)).inputs[1, 2, 0, 0], 293.15)
