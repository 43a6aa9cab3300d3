"""Conversion of units of measurement with UDUNITS, if it is installed.

The CF conventions define units by UDUNITS (unidata.ucar.edu/software/udunits).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from mpitrain.errors import DataError

EXTRA = "python -m pip install cf-units"
# Spellings of models and weather services that UDUNITS reads differently (C is coulomb) or not at all.
_SPELLINGS = {
    "c": "degC", "deg c": "degC", "degrees c": "degC", "deg_c": "degC", "degree_c": "degC", "degrees_c": "degC",
    "celsius": "degC", "degree_celsius": "degC", "degrees_celsius": "degC", "degree celsius": "degC",
    "ppt": "1e-3", "psu": "1e-3", "pss-78": "1e-3",
    "none": "1", "fraction": "1", "(0 - 1)": "1", "unitless": "1", "dimensionless": "1",
}  # fmt: skip
_DURATION = re.compile(
    r"\s*((nano|micro|milli)?seconds?|minutes?|hours?|days?|[num]?s|secs?|mins?|h|hrs?|d)\s*", re.IGNORECASE
)
_SINCE = re.compile(r"\s*\w+\s+since\s+\S", re.IGNORECASE)


@dataclass(frozen=True)
class Conversion:
    """Conversion from one unit to another: scale * number + offset."""

    scale: float
    offset: float


def find_conversion(units: str, wanted: str, what: str) -> Conversion | None:
    """Return the conversion from `units` to `wanted`; None if they are the same, or one of them is empty (not known).

    `what` is the start of the error message. Raises DataError if the two differ and cannot be converted, or if the
    library that converts them is not installed.
    """
    if not units or not wanted or _plain(units) == _plain(wanted):
        return None
    try:
        import cf_units
    except ImportError:
        raise DataError(
            f"{what} has units '{units}', expected '{wanted}'; install cf-units to convert them ({EXTRA}), or give "
            f"data in '{wanted}'"
        ) from None
    try:
        found = cf_units.Unit(_known(units)).convert(np.array([0.0, 1.0]), cf_units.Unit(_known(wanted)))
    except ValueError:
        raise DataError(
            f"{what} has units '{units}', which cannot be converted to '{wanted}'; give data in '{wanted}', or "
            "correct the attribute units"
        ) from None
    conversion = Conversion(float(found[1] - found[0]), float(found[0]))
    return None if conversion == Conversion(1.0, 0.0) else conversion


def counts_from_a_date(units: str) -> bool:
    """Tell whether numbers in these units are times: CF's "days since 2000-01-01", in letters of either case."""
    return bool(_SINCE.match(units))


def is_of_time(units: str) -> bool:
    """Tell whether numbers in these units are times or durations."""
    return counts_from_a_date(units) or bool(_DURATION.fullmatch(units))


def is_same(units: str, other: str) -> bool:
    """Tell whether two texts are spellings of one unit, as far as can be told without UDUNITS."""
    return _plain(units).lower() == _plain(other).lower()


def _known(units: str) -> str:
    return _SPELLINGS.get(units.strip().lower(), units.strip())


def _plain(units: str) -> str:
    """Return units in a plain spelling: m s**-1, m s^-1 and m.s-1 become the same text."""
    text = _known(units).replace("**", "").replace("^", "").replace(".", " ").replace("*", " ")
    return re.sub(r"\s+", " ", text).strip()
