"""Which points are samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

CLEAN_LATITUDE_DEGREES = 40.0
ANY_LATITUDE_DEGREES = 60.0


def select_points(latitude: FloatArray, mask: FloatArray, aice: FloatArray, pole: str, is_clean: bool) -> BoolArray:
    """Tell which of N points are selected, of the same shape.

    `latitude` in degrees, `mask` 1 for ocean, `aice` 0..1, of shapes that broadcast together; `pole` "north",
    "south" or "both". Clean data are ocean points beyond 40 degrees with 0 < aice <= 1; otherwise all points beyond 60
    degrees. Comparisons are strict except aice <= 1, so a NaN aice is never clean.
    """
    poleward = {"north": latitude, "south": -latitude}[pole] if pole != "both" else np.abs(latitude)
    if not is_clean:
        beyond: BoolArray = poleward > ANY_LATITUDE_DEGREES
        return beyond
    selected: BoolArray = (mask == 1) & (poleward > CLEAN_LATITUDE_DEGREES) & (aice > 0) & (aice <= 1)
    return selected
