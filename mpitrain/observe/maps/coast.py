"""Coastlines of the world for maps: Natural Earth's land at 1:110 million (version 4.1, public domain).

`coastlines_110m.npz` holds the points of all lines as (longitude, latitude) in hundredths of a degree, and how many
points each line has. Edges that only close a polygon at the antimeridian or at the South Pole are left out.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FILE = Path(__file__).with_name("coastlines_110m.npz")


@functools.cache
def coastlines() -> tuple[npt.NDArray[Any], ...]:
    """Return lines (N, 2) of longitude (-180 to 180) and latitude, in degrees."""
    with np.load(_FILE) as stored:
        points = stored["hundredths_of_degrees"] / 100.0
        ends = np.cumsum(stored["num_points"])
    return tuple(np.split(points, ends[:-1]))
