"""Triangles between unordered points, such as the cells of an unstructured grid.

N  points   M  vertices: points, and copies of those near the edge of the map   K  triangles
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.observe.maps.cells import wrapped

Array = npt.NDArray[Any]
_SEAM_DEGREES = 30.0
# A triangle is across a hole if its longest edge (in usual edge lengths around it) and its area (in squares of these)
# both exceed their limits: a sliver is long but has a small area.
_LONGEST_EDGE, _LARGEST_AREA = 4.0, 1.5
# The median ratio is about 1.9 for random points, below 1.2 for meshes, including refined ones.
_SCATTERED_SPREAD = 1.45


def triangulate(lon: Array, lat: Array, west: float) -> tuple[Any, Array] | None:
    """Return matplotlib's Delaunay triangulation of points (N,), and the point index of each vertex (M,).

    Points near the edge of a map that begins at `west` are repeated on its other side, so that triangles cross the
    edge. Triangles much longer than those around them, such as across land without points, are masked. Returns None if
    there are no triangles (fewer than three points, or all in one line), or if points are scattered, such as stations.
    """
    from matplotlib.tri import Triangulation

    lon = wrapped(lon, west)
    first, last = np.flatnonzero(lon < west + _SEAM_DEGREES), np.flatnonzero(lon > west + 360.0 - _SEAM_DEGREES)
    x = np.concatenate([lon, lon[first] + 360.0, lon[last] - 360.0])
    vertices = np.concatenate([np.arange(len(lon)), first, last])
    try:
        found = Triangulation(x, lat[vertices])
    except (RuntimeError, ValueError):  # raised by Qhull or matplotlib for points in one line
        return None
    edges = np.stack([found.triangles, np.roll(found.triangles, 1, axis=1)], axis=-1)  # (K, 3, 2)
    lengths = _distance(x, lat[vertices], edges[..., 0], edges[..., 1])
    if _are_scattered(edges, lengths, len(vertices)):
        return None
    found.set_mask(_is_long(edges, lengths, len(vertices)))
    return found, vertices


def _are_scattered(edges: Array, lengths: Array, num_points: int) -> bool:
    """Tell whether points are scattered; in a mesh the distance to the nearest neighbour varies gradually."""
    shortest = np.full(num_points, np.inf)
    np.minimum.at(shortest, edges.reshape(-1), np.repeat(lengths.reshape(-1), 2))
    corners = shortest[edges[..., 0]]
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = corners.max(axis=1) / corners.min(axis=1)
    return bool(np.median(spread) > _SCATTERED_SPREAD)


def _is_long(edges: Array, lengths: Array, num_points: int) -> npt.NDArray[np.bool_]:
    """Return a mask (K,) of triangles that are much longer than the usual edges at their corners."""
    usual = _usual_length(edges.reshape(-1, 2), lengths.reshape(-1), num_points)[edges[..., 0]].max(axis=1)
    half = lengths.sum(axis=1) / 2
    area = np.sqrt(np.clip(half * np.prod(half[:, None] - lengths, axis=1), 0.0, None))  # Heron's formula
    return np.asarray((lengths.max(axis=1) > _LONGEST_EDGE * usual) & (area > _LARGEST_AREA * usual**2))


def _distance(lon: Array, lat: Array, start: Array, stop: Array) -> Array:
    """Return great-circle distances in radians (haversine)."""
    one, other = np.radians(lat[start]), np.radians(lat[stop])
    across = np.radians(lon[stop] - lon[start]) / 2
    root = np.sin((other - one) / 2) ** 2 + np.cos(one) * np.cos(other) * np.sin(across) ** 2
    return np.asarray(2 * np.arcsin(np.sqrt(np.clip(root, 0.0, 1.0))))


def _usual_length(edges: Array, lengths: Array, num_points: int) -> Array:
    """Return the lower third (quantile 1/3) of edge lengths at each vertex (M,): beside a hole the others are long."""
    ends, both = edges.reshape(-1), np.repeat(lengths, 2)
    order = np.lexsort((both, ends))
    first = np.searchsorted(ends[order], np.arange(num_points))
    count = np.bincount(ends, minlength=num_points)
    usual = np.zeros(num_points)
    has = count > 0
    usual[has] = both[order][(first + count // 3)[has]]
    return usual
