"""Triangles between points in no order, such as the cells of an unstructured grid.

N  points   M  points with those that are drawn on both sides of the map   K  triangles
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.observe.maps.cells import wrapped

Array = npt.NDArray[Any]
_SEAM_DEGREES = 30.0
# A triangle across a hole is longer than so many usual edges around it, and wider than a sliver, which has few.
_LONGEST_EDGE, _LARGEST_AREA = 4.0, 1.5
# Of random points the median is about 1.9, of meshes, refined ones too, below 1.2.
_SCATTERED_SPREAD = 1.45


def triangulate(lon: Array, lat: Array, west: float) -> tuple[Any, Array] | None:
    """Return matplotlib's triangulation of points (N,) by Delaunay, and which points its vertices (M,) are.

    Points near the edge of a map that begins at `west` stand on both sides of it, so that triangles go on across.
    Triangles that are long against those around them, such as those across land without points, are masked. None where
    the points have no triangles: fewer than three, or all in one line; and where they are scattered, as stations are.
    """
    from matplotlib.tri import Triangulation

    lon = wrapped(lon, west)
    first, last = np.flatnonzero(lon < west + _SEAM_DEGREES), np.flatnonzero(lon > west + 360.0 - _SEAM_DEGREES)
    x = np.concatenate([lon, lon[first] + 360.0, lon[last] - 360.0])
    vertices = np.concatenate([np.arange(len(lon)), first, last])
    try:
        found = Triangulation(x, lat[vertices])
    except (RuntimeError, ValueError):  # Qhull and matplotlib refuse points in one line
        return None
    edges = np.stack([found.triangles, np.roll(found.triangles, 1, axis=1)], axis=-1)  # (K, 3, 2)
    lengths = _distance(x, lat[vertices], edges[..., 0], edges[..., 1])
    if _are_scattered(edges, lengths, len(vertices)):
        return None
    found.set_mask(_is_long(edges, lengths, len(vertices)))
    return found, vertices


def _are_scattered(edges: Array, lengths: Array, num_points: int) -> bool:
    """Tell whether points are no cells of a mesh, whose distances from their neighbours change little by little."""
    shortest = np.full(num_points, np.inf)
    np.minimum.at(shortest, edges.reshape(-1), np.repeat(lengths.reshape(-1), 2))
    corners = shortest[edges[..., 0]]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = corners.max(axis=1) / corners.min(axis=1)
    return bool(np.median(spread) > _SCATTERED_SPREAD)


def _is_long(edges: Array, lengths: Array, num_points: int) -> npt.NDArray[np.bool_]:
    """Tell which triangles (K) reach much farther than the shorter edges at their corners."""
    usual = _usual_length(edges.reshape(-1, 2), lengths.reshape(-1), num_points)[edges[..., 0]].max(axis=1)
    half = lengths.sum(axis=1) / 2
    area = np.sqrt(np.clip(half * np.prod(half[:, None] - lengths, axis=1), 0.0, None))  # Heron
    return np.asarray((lengths.max(axis=1) > _LONGEST_EDGE * usual) & (area > _LARGEST_AREA * usual**2))


def _distance(lon: Array, lat: Array, start: Array, stop: Array) -> Array:
    """Return great-circle distances in radians (haversine)."""
    one, other = np.radians(lat[start]), np.radians(lat[stop])
    across = np.radians(lon[stop] - lon[start]) / 2
    root = np.sin((other - one) / 2) ** 2 + np.cos(one) * np.cos(other) * np.sin(across) ** 2
    return np.asarray(2 * np.arcsin(np.sqrt(np.clip(root, 0.0, 1.0))))


def _usual_length(edges: Array, lengths: Array, num_points: int) -> Array:
    """Return for each point (M,) the length below which a third of its edges is: beside a hole the others are long."""
    ends, both = edges.reshape(-1), np.repeat(lengths, 2)
    order = np.lexsort((both, ends))
    first = np.searchsorted(ends[order], np.arange(num_points))
    count = np.bincount(ends, minlength=num_points)
    usual = np.zeros(num_points)
    has = count > 0
    usual[has] = both[order][(first + count // 3)[has]]
    return usual
