"""Dates and durations as days: numpy's, and absolute times, `day as %Y%m%d.%f`, as CDO writes them.

N  values
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

DAYS = "days since 1970-01-01"
OF_DATES: Mapping[str, str] = MappingProxyType({"units": DAYS, "calendar": "proleptic_gregorian"})
OF_DURATIONS: Mapping[str, str] = MappingProxyType({"units": "days"})
"""The attributes of dates, and of durations, that are read as numbers."""
_DAY_MS = 86_400_000.0
_DAY_S = 86_400.0
_UNITS = re.compile(r"^days? as %Y%m%d\.%f$")


def is_absolute(units: str) -> bool:
    """Tell whether units are those of absolute times (CDO user guide, "Absolute time")."""
    return bool(_UNITS.match(units))


def days_of(times: npt.NDArray[Any], calendar: str) -> npt.NDArray[np.float64]:
    """Return the days since 1970-01-01 in a calendar ("" is the standard one) of absolute times, NaN of no date."""
    import cftime

    def days(time: float) -> float:
        date, fraction = divmod(time, 1.0)
        try:
            day = cftime.datetime(
                int(date // 10_000), int(date // 100 % 100), int(date % 100), calendar=calendar or "standard"
            )
            # To the second: of so many digits a fraction is known to 0.3 ms.
            return float(cftime.date2num(day, DAYS)) + round(fraction * _DAY_S) / _DAY_S
        except (ValueError, OverflowError):
            return np.nan

    found = [days(one) for one in np.asarray(times, dtype=np.float64).reshape(-1).tolist()]
    return np.array(found, dtype=np.float64).reshape(np.shape(times))


def numbers_of_array(values: Any) -> tuple[npt.NDArray[Any], Mapping[str, str]]:
    """Return an array of numbers, NaN where `values` are masked or numpy's NaT, and its attributes if they are times.

    Dates become days since 1970, durations days, but for months and years, which differ in length and stay as they
    are. Integers and truth values with a mask become float64.
    """
    array, mask = with_mask(values)
    attributes: Mapping[str, str] = {}
    if array.dtype.kind == "M":
        array, attributes = days_of_dates(array), OF_DATES
    elif array.dtype.kind == "m" and np.datetime_data(array.dtype)[0] not in "MY":
        array, attributes = np.where(np.isnat(array), np.nan, array / np.timedelta64(1, "D")), OF_DURATIONS
    if array.dtype.kind in "biuf" and np.any(mask):
        floats = array if array.dtype.kind == "f" else array.astype(np.float64)
        array = np.where(mask, floats.dtype.type(np.nan), floats)
    return array, attributes


def with_mask(values: Any) -> tuple[npt.NDArray[Any], Any]:
    """Return the numbers of anything that is an array, and its mask; computes or reads a lazy one once."""
    if hasattr(values, "compute"):  # dask
        values = values.compute()
    elif hasattr(values, "set_auto_mask"):  # a variable of netCDF4
        values = values[...]
    elif isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.stack(values)
    is_masked = isinstance(values, np.ma.MaskedArray)
    return np.asarray(values.data if is_masked else values), values.mask if is_masked else np.ma.nomask


def unmasked(values: Any) -> npt.NDArray[Any]:
    """Return an array with NaN where `values` are masked, NaT of times, which stay numpy's."""
    array, mask = with_mask(values)
    if array.dtype.kind in "mM":
        return np.where(mask, array.dtype.type("NaT"), array) if np.any(mask) else array
    return numbers_of_array(np.ma.masked_array(array, mask) if np.any(mask) else array)[0]


def days_of_dates(dates: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return numpy's dates as days since 1970-01-01 (`DAYS`), NaN for none."""
    in_ms = dates.astype("datetime64[ms]")
    is_exact = bool((np.isnat(dates) | (in_ms == dates)).all())
    days = in_ms.astype(np.float64) / _DAY_MS if is_exact else (dates - np.datetime64(0, "s")) / np.timedelta64(1, "D")
    return np.where(np.isnat(dates), np.nan, days)
