"""Which station, or which place, each row of a table of several is of.

N  rows
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import STATION, FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo, texts_of

_ROLES = ("timeseries_id", "trajectory_id")  # CF 9.5
_CALLED = re.compile(
    r"(stations?|site|platform|buoy|wmo|trajectory)(_?(id|name|code|nr|no|number))?|stationsname|mmsi|id"
    r"|(gauge|float|drifter|ship|tower|lake|basin)_(id|name|code|nr|no|number)",
    re.IGNORECASE,
)
_DEGREES = "{:.3f} {:.3f}".format


class StationsOfRows(NamedTuple):
    """Station (N,) and place (N,) of each row as text, and what tells the station; None of what is not known."""

    stations: npt.NDArray[Any] | None = None
    told_by: str = ""
    places: npt.NDArray[Any] | None = None


def stations_of_rows(description: FileDescription, num_rows: int) -> StationsOfRows:
    """Return the station of each row, as the user names it, by CF's `cf_role` or by names; and its place.

    Of the latter those with units, or with numbers that are not whole, are measured, and no stations.
    """
    file = description.file
    along = [one for one in file.variables.values() if one.shape[:1] == (num_rows,)]
    named = description.variable_named(STATION)
    told = [one for one in along if named is not None and one.name == named.name]
    told = told or [one for one in along if one.text("cf_role") in _ROLES]
    told = told or [one for one in along if _CALLED.fullmatch(one.short_name) is not None and not one.units]
    found = [(one.name, names) for one in told if (names := _names(file, one)) is not None]
    places = [
        one
        for quantity in (LATITUDE, LONGITUDE)
        for one in along
        if len(one.shape) == 1 and one.is_numeric and description.is_quantity(one.name, quantity)
    ]
    at = None
    if len(places) == len((LATITUDE, LONGITUDE)):
        both = (read_column(file, one) for one in places)
        at = np.array([_DEGREES(*one) for one in zip(*both, strict=True)])
    if not found:
        return StationsOfRows(places=at)
    together = np.array([" ".join(names) for names in zip(*(names for _, names in found), strict=True)])
    return StationsOfRows(together, ", ".join(f"'{name}'" for name, _ in found), at)


def _names(file: FieldFile, info: VariableInfo) -> npt.NDArray[Any] | None:
    """Return values of a variable (N,) as text; None without any, and of numbers that tell none."""
    if info.is_numeric:
        values = read_column(file, info) if len(info.shape) == 1 else np.array([0.5])
        known = np.isfinite(values)
        return values.astype("U") if known.any() and (values == np.round(values))[known].all() else None
    texts = texts_of(file.read_stored(info.name, (slice(None),) * len(info.shape))).astype("U")
    return texts if np.char.strip(texts).any() else None
