"""Inputs that go around are named with their cosine and sine, which have no seam; others are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from field_files import config_of, write_netcdf

from mpitrain.data.selection.cyclic import cosine_and_sine, covers_circle
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of

EAST, WHOLE = {"units": "degrees_east"}, np.arange(0.0, 360.0, 30.0)
# What an input is: its name, values and attributes, and the names that are proposed; None where none is.
INPUTS: dict[str, tuple[str, object, dict[str, str], str | None]] = {
    "longitude": ("lon", WHOLE, EAST, "'cos(0.017453*lon)', 'sin(0.017453*lon)'"),
    "from -180": ("lon", WHOLE - 180, EAST, "'cos(0.017453*lon)', 'sin(0.017453*lon)'"),
    "in radians": ("x", np.radians(WHOLE), {"units": "radian", "standard_name": "longitude"}, "'cos(x)', 'sin(x)'"),
    "a basin": ("lon", np.arange(12.0) - 30, EAST, None),
    "months": ("month", np.arange(12.0) + 1, {}, "'cos(0.523599*month)', 'sin(0.523599*month)'"),
    "a count of months": ("month", np.arange(12.0) * 5, {}, None),
    "hours": ("HOUR", np.arange(12.0) * 2, {}, "'cos(0.261799*HOUR)', 'sin(0.261799*HOUR)'"),
    "a temperature": ("t2m", WHOLE, {"units": "K"}, None),
}


def noticed(path: Path, inputs: str) -> list[str]:
    source = open_source(selection_of(config_of(path, inputs, "variables.output_variables=[y]")))
    return [notice for notice in source.notices if "circle" in notice]


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_that_goes_around_is_named_with_what_has_no_seam(tmp_path: Path, kind: str) -> None:
    name, values, attributes, instead = INPUTS[kind]
    columns = {name: values, "u": np.arange(12.0), "y": np.arange(12.0)}
    path = write_netcdf(
        tmp_path / "f.nc", {one: (("n",), found) for one, found in columns.items()}, "", None, **{name: attributes}
    )
    expected = [] if instead is None else [
        f"{name}: the network sees a jump where the circle closes; use cosine and sine instead: "
        f"variables.input_variables=[u, {instead}]"
    ]  # fmt: skip
    assert noticed(path, f"variables.input_variables=[u, {name}]") == expected


def test_what_is_proposed_is_taken_and_ends_the_notice(tmp_path: Path) -> None:
    variables = {
        "y": (("time", "lon"), np.ones((12, 12))),
        "lon": (("lon",), WHOLE),
        "time": (("time",), np.arange(12.0) * 31),
    }
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, lon=EAST, time={"units": "days since 2001-01-01"})
    (notice,) = noticed(path, "variables.input_variables=[lon, month]")
    assert notice.startswith("lon, month: ")
    proposed = notice.rpartition(": ")[2]
    assert noticed(path, proposed) == []
    samples = open_source(selection_of(config_of(path, proposed, "variables.output_variables=[y]"))).read_all().inputs
    assert samples.shape[1] == 4
    assert np.hypot(samples[:, ::2], samples[:, 1::2]) == pytest.approx(1, abs=1e-6)


def test_the_circle_and_its_derived_variables() -> None:
    assert covers_circle(np.array([0.0, 90, 180, 270, 300, 45, 135, 225]), 360) is True
    assert covers_circle(np.array([np.nan]), 360) is False
    assert covers_circle(np.array([0.0, 90, 180]), 360) is False
    assert cosine_and_sine('var("a/lon")', 360.0) == ['cos(0.017453*var("a/lon"))', 'sin(0.017453*var("a/lon"))']
