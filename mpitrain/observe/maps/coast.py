"""Coastlines, where cartopy is installed and has them; maps do without where not."""

from __future__ import annotations

import functools
import socket
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

_LONGEST_WAIT_S = 5.0  # cartopy fetches its coastlines once; a compute node often reaches nothing


@functools.cache
def coastlines() -> tuple[npt.NDArray[Any], ...]:
    """Return lines (N, 2) of longitude and latitude in degrees; none where they cannot be had. Raises nothing."""
    try:
        from cartopy.io import shapereader
    except ImportError:
        return ()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_LONGEST_WAIT_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it fetches
            path = shapereader.natural_earth(resolution="110m", category="physical", name="coastline")
            shapes = list(shapereader.Reader(path).geometries())
        return tuple(np.asarray(line.coords)[:, :2] for shape in shapes for line in getattr(shape, "geoms", [shape]))
    except Exception:  # whatever a library, a broken file or a network brings: the map is drawn without
        return ()
    finally:
        socket.setdefaulttimeout(before)
