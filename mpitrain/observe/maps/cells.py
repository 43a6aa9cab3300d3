"""The cells of a grid as polygons of longitude and latitude, from their centres.

J, I  rows and columns   N  cells
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# A corner farther from its centre is beyond a pole, where longitudes mean little, or across a hole in the grid.
_FARTHEST_DEGREES = 90.0
_WIDE_GAP_DEGREES = 40.0
# A mesh has at least this ratio of the distance over two steps to that over one (about 2; random places have 1, a
# random walk 1.4).
_FARTHER_BY_TWO = 1.5


def is_regular(lon: Array, lat: Array) -> bool:
    """Tell whether the longitude (J, I) depends only on the column and the latitude (J, I) only on the row."""
    return bool(np.array_equal(lon, lon[:1].repeat(len(lon), 0)) and np.array_equal(lat, lat[:, :1] + 0 * lat))


def is_mesh(lon: Array, lat: Array) -> bool:
    """Tell whether places (J, I) are ordered like the cells of a mesh: two steps lead farther than one.

    Stations in a table of hourly reports are not.
    """
    points = _on_sphere(lon, lat)
    for along in (points, np.moveaxis(points, 0, 1)):
        one, two = (np.linalg.norm(along[step:] - along[:-step], axis=-1) for step in (1, 2))
        one, two = one[one > 0], two[two > 0]
        if one.size and two.size and np.median(two) < _FARTHER_BY_TWO * np.median(one):
            return False
    return True


def continuous(lon: Array) -> Array:
    """Return longitudes (I,) without jumps of 360 degrees."""
    unwrapped = np.asarray(np.unwrap(lon, period=360.0))
    return unwrapped - 360.0 if np.nanmin(unwrapped) >= 180.0 else unwrapped


def western_edge(lon: Array) -> float:
    """Return the western edge of a map of points: the middle of the widest gap in longitude; -180 if none is wide."""
    around = np.unique(np.round(lon[np.isfinite(lon)] % 360.0, 6))
    if len(around) == 0:
        return -180.0
    gaps = np.diff(np.append(around, around[0] + 360.0))
    widest = int(np.argmax(gaps))
    middle = around[widest] + gaps[widest] / 2
    # So that the middle of the map, opposite of the gap, is between -180 and 180.
    return float(middle % 360.0 - 360.0) if gaps[widest] > _WIDE_GAP_DEGREES else -180.0


def wrapped(lon: Array, west: float) -> Array:
    """Return longitudes in [west, west + 360)."""
    return np.asarray((lon - west) % 360.0 + west)


def cell_polygons(lon: Array, lat: Array, west: float) -> tuple[Array, Array]:
    """Return the corners (N, 4, 2) in degrees of cells with centres `lon`, `lat` (J, I), and the cells' indices (N,).

    A corner is the mean of the four centres around it on the sphere, so the date line and the poles need no special
    treatment. Cells across the edge of a map that begins at `west` are returned twice, once for each side. Indices are
    those of the flattened grid.
    """
    corners = _corners(_on_sphere(lon, lat))
    around = np.stack([corners[:-1, :-1], corners[:-1, 1:], corners[1:, 1:], corners[1:, :-1]], axis=2)
    around = around.reshape(-1, 4, 3)  # one row per cell
    centre = wrapped(lon.reshape(-1, 1), west)
    corner_lon = np.degrees(np.arctan2(around[..., 1], around[..., 0]))
    corner_lat = np.degrees(np.arcsin(np.clip(around[..., 2], -1.0, 1.0)))
    distance = (corner_lon - centre + 180.0) % 360.0 - 180.0
    with np.errstate(invalid="ignore"):
        drawn = np.flatnonzero((np.abs(distance) < _FARTHEST_DEGREES).all(axis=1))
    polygons = np.stack([centre + distance, corner_lat], axis=-1)[drawn]
    over, under = polygons[..., 0].max(axis=1) > west + 360.0, polygons[..., 0].min(axis=1) < west
    again = [polygons, polygons[over] - [360.0, 0.0], polygons[under] + [360.0, 0.0]]
    return np.concatenate(again), np.concatenate([drawn, drawn[over], drawn[under]])


def _on_sphere(lon: Array, lat: Array) -> Array:
    """Return points on the unit sphere (..., 3)."""
    lon, lat = np.radians(lon.astype(np.float64)), np.radians(lat.astype(np.float64))
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def _corners(centres: Array) -> Array:
    """Return the corners (J + 1, I + 1, 3) between centres (J, I, 3); those at the borders are extrapolated."""
    for axis in (0, 1):
        centres = np.moveaxis(centres, axis, 0)
        if len(centres) > 1:
            first, last = 2 * centres[:1] - centres[1:2], 2 * centres[-1:] - centres[-2:-1]
        else:
            first = last = centres
        centres = np.moveaxis(np.concatenate([first, centres, last]), 0, axis)
    middle = centres[:-1, :-1] + centres[:-1, 1:] + centres[1:, :-1] + centres[1:, 1:]
    length = np.linalg.norm(middle, axis=-1, keepdims=True)
    return np.asarray(middle / np.where(length > 0, length, np.nan))
