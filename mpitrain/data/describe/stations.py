"""Which station, or which place, each row of a table of several is of.

N  rows
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import FieldFile, VariableInfo

_ROLES = ("timeseries_id", "trajectory_id", "profile_id")  # CF 9.5
_PLATFORMS = "station|site|platform|buoy|gauge|plot|float|ship|drifter|wmo|basin"
_CALLED = re.compile(rf"({_PLATFORMS})(_?(id|name|code|nr|no|number))?", re.IGNORECASE)
_FEWEST_ROWS_A_PLACE = 3
_DEGREES = "{:.3f} {:.3f}".format


def stations_of_rows(description: FileDescription, num_rows: int) -> tuple[npt.NDArray[Any], str] | None:
    """Return the station of each row (N,) as text, and what tells it; None of rows of one, or of none that is known.

    By a variable that CF's `cf_role` or a usual name calls a station, else by latitude and longitude where these stay
    the same for several rows.
    """
    file = description.file
    for info in file.variables.values():
        is_called = info.text("cf_role") in _ROLES or _CALLED.fullmatch(info.short_name) is not None
        if is_called and info.shape[:1] == (num_rows,):
            names = _texts(file, info)
            return (names, f"'{info.name}'") if names is not None and len(set(names.tolist())) > 1 else None
    found = [
        one
        for quantity in (LATITUDE, LONGITUDE)
        for one in file.variables.values()
        if one.shape == (num_rows,) and one.is_numeric and description.is_quantity(one.name, quantity)
    ]
    if len(found) != len((LATITUDE, LONGITUDE)):
        return None
    places = np.array([_DEGREES(*one) for one in zip(*(read_column(file, one) for one in found), strict=True)])
    is_of_stations = 1 < len(np.unique(places)) <= num_rows / _FEWEST_ROWS_A_PLACE
    return (places, f"'{found[0].name}' and '{found[1].name}'") if is_of_stations else None


def _texts(file: FieldFile, info: VariableInfo) -> npt.NDArray[Any] | None:
    """Return values of a variable (N,) as text; None of numbers with further dimensions."""
    if info.is_numeric:
        return read_column(file, info).astype("U") if len(info.shape) == 1 else None
    stored = file.read_stored(info.name, (slice(None),) * len(info.shape))
    if stored.dtype == "S1" and stored.ndim > 1:
        stored = np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]
    return np.char.decode(stored, "utf-8", "replace") if stored.dtype.kind == "S" else stored.astype("U")
