"""Conversion of dates and durations to days: numpy's types, and CDO's absolute times, `day as %Y%m%d.%f`.

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
"""Attributes of dates, and of durations, that were converted to numbers."""
_DAY_MS = 86_400_000.0
_DAY_S = 86_400.0
_UNITS = re.compile(r"^days? as %Y%m%d\.%f$")


def is_absolute(units: str) -> bool:
    """Tell whether units mean absolute times (CDO user guide, "Absolute time")."""
    return bool(_UNITS.match(units))


def days_of(times: npt.NDArray[Any], calendar: str) -> npt.NDArray[np.float64]:
    """Return absolute times as days since 1970-01-01 in a calendar ("" is the standard one), NaN for invalid dates."""
    import cftime

    def days(time: float) -> float:
        date, fraction = divmod(time, 1.0)
        try:
            day = cftime.datetime(
                int(date // 10_000), int(date // 100 % 100), int(date % 100), calendar=calendar or "standard"
            )
            # Round to seconds: float64 resolves the fraction of such a number to 0.3 ms only.
            return float(cftime.date2num(day, DAYS)) + round(fraction * _DAY_S) / _DAY_S
        except (ValueError, OverflowError):
            return np.nan

    found = [days(one) for one in np.asarray(times, dtype=np.float64).reshape(-1).tolist()]
    return np.array(found, dtype=np.float64).reshape(np.shape(times))


def numbers_of_array(values: Any) -> tuple[npt.NDArray[Any], Mapping[str, str]]:
    """Return an array without mask (see `unmasked`), with times as numbers, and their attributes ({} for others).

    Dates become days since 1970 and durations days, NaN for NaT. Durations in months and years vary in length and stay
    unchanged.
    """
    array = unmasked(values)
    if array.dtype.kind == "M":
        return days_of_dates(array), OF_DATES
    if array.dtype.kind == "m" and np.datetime_data(array.dtype)[0] not in "MY":
        return np.where(np.isnat(array), np.nan, array / np.timedelta64(1, "D")), OF_DURATIONS
    return array, {}


def unmasked(values: Any) -> npt.NDArray[Any]:
    """Return array-like values as a plain array, with NaN (NaT in times) where they are masked.

    Masked integers and booleans become float64. A lazy array is computed, or read, once.
    """
    if hasattr(values, "compute"):  # dask
        values = values.compute()
    elif hasattr(values, "set_auto_mask"):  # a variable of netCDF4
        values = values[...]
    elif isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.stack(values)
    if not isinstance(values, np.ma.MaskedArray) or not np.any(values.mask):
        return np.asarray(values)
    array = values.data.astype(np.float64) if values.dtype.kind in "biu" else values.data
    if array.dtype.kind not in "fmM":
        return array
    missing: Any = np.nan if array.dtype.kind == "f" else "NaT"
    return np.where(values.mask, array.dtype.type(missing), array)


def days_of_dates(dates: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return numpy dates as days since 1970-01-01 (`DAYS`), NaN for NaT."""
    in_ms = dates.astype("datetime64[ms]")
    is_exact = bool((np.isnat(dates) | (in_ms == dates)).all())
    days = in_ms.astype(np.float64) / _DAY_MS if is_exact else (dates - np.datetime64(0, "s")) / np.timedelta64(1, "D")
    return np.where(np.isnat(dates), np.nan, days)
