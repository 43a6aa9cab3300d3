"""A map of values: where the data says where its points are by longitude and latitude, else by row and column.

J, I  rows and columns   N  points in no order
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.observe.figures import draw_field, new_figure, no_value_background
from mpitrain.observe.maps.cells import cell_polygons, continuous, is_regular, western_edge, wrapped
from mpitrain.observe.maps.coast import coastlines
from mpitrain.observe.maps.triangles import triangulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_MOST_DRAWN = 1000, 2000  # rows and columns: more than a picture has dots for
_MOST_CELLS, _MOST_POINTS = 300_000, 100_000
_COAST_COLOUR, _VEIL, _LETTERS_AN_INCH = "0.25", 0.7, 11.5
Colours = dict[str, Any]
Layers = list[tuple[npt.NDArray[np.bool_], Colours]]
"""Which values are drawn together, and in what colours."""


@dataclass(frozen=True)
class MapLook:
    """What a map says and how: `label` of its colours with units, colour map, limits, None for those of the values."""

    title: str
    label: str
    colours: str = "viridis"
    limits: tuple[float, float] | None = None


def error_look(title: str, label: str, errors: Array) -> MapLook:
    """Return how predictions minus data are shown: 0, where there is no error, in the middle of the colours."""
    largest = float(np.nanmax(np.abs(errors))) if np.isfinite(errors).any() else 0.0
    return MapLook(title, f"error of {label}", "RdBu_r", (-largest or -1.0, largest or 1.0))


def draw_map(
    values: Array, places: tuple[Array, Array] | None, look: MapLook, pale: npt.NDArray[np.bool_] | None = None,
    width_inch: float = 8.0,
) -> Figure:  # fmt: skip
    """Return a figure of values (J, I) or (N,), north up, grey where there is none, `pale` ones in pale colours.

    `places` are longitude and latitude in degrees, in the shape of `values`: cells where they lie in rows and columns,
    triangles between them where they lie in one row. None: rows and columns, the first row at the bottom.
    """
    if places is not None and _is_grid(values):
        part = _part_with_values(values)
        values, places = values[part], (places[0][part], places[1][part])
        pale = None if pale is None else pale[part]
    colours = _colours(values, look)
    # Marks on each point would hide the values: what is not selected is paler instead.
    hidden = np.zeros(values.shape, dtype=bool) if pale is None else pale
    layers = [(~hidden, colours), *([(hidden, _paled(colours))] if hidden.any() else [])]
    if places is None:
        figure, axes = new_figure(width_inch, _height(width_inch, values.shape[0] / values.shape[1]))
        drawn = [draw_field(axes, np.where(shown, values, np.nan), **own) for shown, own in layers]
    else:
        extent = _extent(*places)
        ratio = _aspect(extent) * (extent[3] - extent[2]) / _span(extent)
        figure, axes = new_figure(width_inch, _height(width_inch, ratio))
        draw = _draw_grid if _is_grid(values) else _draw_points
        no_value_background(axes)
        drawn = draw(axes, values, places, layers)
        _finish(axes, extent)
    figure.colorbar(drawn[0], ax=axes, label=look.label)
    axes.set_title(textwrap.fill(look.title, int(_LETTERS_AN_INCH * width_inch)), fontsize=10)
    return figure


def _is_grid(values: Array) -> bool:
    return values.ndim == 2 and 1 not in values.shape


def _part_with_values(values: Array) -> tuple[slice, slice]:
    """Return the rows and columns (of at least two) around all values, with a margin: the rest of a globe is grey."""
    parts = []
    for axis, size in enumerate(values.shape):
        has = np.flatnonzero(np.isfinite(values).any(axis=1 - axis))
        first, last = (has[0], has[-1]) if len(has) else (0, size - 1)
        margin = 2 + (last - first) // 10
        parts.append(slice(max(0, first - margin), last + 1 + margin))
    return parts[0], parts[1]


def _height(width_inch: float, ratio: float) -> float:
    return (width_inch - 2.0) * min(1.2, max(0.3, ratio)) + 1.2


def _colours(values: Array, look: MapLook) -> Colours:
    from matplotlib import colormaps

    finite = values[np.isfinite(values)]
    low, high = look.limits or ((float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0))
    return {"cmap": colormaps[look.colours], "vmin": low, "vmax": high}


def _paled(colours: Colours) -> Colours:
    from matplotlib.colors import ListedColormap

    full = colours["cmap"](np.linspace(0.0, 1.0, 256))
    return colours | {"cmap": ListedColormap(_VEIL + (1.0 - _VEIL) * full)}


def _draw_grid(axes: Axes, values: Array, places: tuple[Array, Array], layers: Layers) -> list[Any]:
    """Draw cells: of a regular grid as they are, of another one by their corners."""
    lon, lat = places
    if is_regular(lon, lat):
        steps = tuple(max(1, -(-size // most)) for size, most in zip(values.shape, _MOST_DRAWN, strict=True))
        part = slice(None, None, steps[0]), slice(None, None, steps[1])
        x, y = continuous(lon[0, part[1]]), lat[part[0], 0]
        order = np.argsort(x), np.argsort(y)  # a file may hold them in any order
        turned = np.ix_(order[1], order[0])
        return [
            axes.pcolormesh(x[order[0]], y[order[1]], _where(shown[part], values[part])[turned], **own)
            for shown, own in layers
        ]
    step = max(1, int(np.ceil(np.sqrt(values.size / _MOST_CELLS))))
    part = slice(None, None, step), slice(None, None, step)
    lon, lat = lon[part], lat[part]
    polygons, cells = cell_polygons(lon, lat, western_edge(lon))
    return [
        _add_polygons(axes, polygons, _where(shown[part], values[part]).reshape(-1)[cells], own)
        for shown, own in layers
    ]


def _where(shown: npt.NDArray[np.bool_], values: Array) -> Any:
    return np.ma.masked_invalid(np.where(shown, values, np.nan))


def _add_polygons(axes: Axes, polygons: Array, values: Any, colours: Colours) -> Any:
    from matplotlib.collections import PolyCollection

    is_value = ~np.ma.getmaskarray(values)
    # Smooth edges would let the background shine through between cells.
    drawn = PolyCollection(list(polygons[is_value]), cmap=colours["cmap"], edgecolors="face", linewidths=0.1,
                           antialiaseds=False)  # fmt: skip
    drawn.set_array(values.data[is_value])
    drawn.set_clim(colours["vmin"], colours["vmax"])
    axes.add_collection(drawn, autolim=False)
    return drawn


def _draw_points(axes: Axes, values: Array, places: tuple[Array, Array], layers: Layers) -> list[Any]:
    """Draw triangles between points; points where there are none to draw."""
    from matplotlib.tri import Triangulation

    lon, lat, values = (np.asarray(one, dtype=np.float64).reshape(-1) for one in (*places, values))
    kept = _points_once(lon, lat)
    lon, lat, values = lon[kept], lat[kept], values[kept]
    layers = [(shown.reshape(-1)[kept], own) for shown, own in layers]
    west = western_edge(lon)
    found = triangulate(lon, lat, west)
    if found is None:
        return [axes.scatter(wrapped(lon[on], west), lat[on], c=values[on], s=40, **own) for on, own in layers]
    whole, vertices = found
    is_empty = ~np.isfinite(values)
    filled = np.where(is_empty, layers[0][1]["vmin"], values)[vertices]
    drawn = []
    for number, (shown, own) in enumerate(layers):
        # A triangle belongs to the first layer that all three of its corners belong to, at a border to the second.
        missing = is_empty if number else is_empty | ~shown
        mask = whole.mask | missing[vertices][whole.triangles].any(axis=1)
        if number:
            mask |= ~shown[vertices][whole.triangles].any(axis=1)
        part = Triangulation(whole.x, whole.y, whole.triangles, mask)
        drawn.append(axes.tripcolor(part, filled, shading="gouraud", **own))
    return drawn


def _points_once(lon: Array, lat: Array) -> npt.NDArray[np.int64]:
    """Return the first of the points at each place, as of the first time level: a triangulation takes a place once."""
    placed = np.flatnonzero(np.isfinite(lon) & np.isfinite(lat))
    once = np.unique(lon[placed] % 360.0 + 1j * lat[placed], return_index=True)[1]
    kept = np.sort(placed[once])
    return np.asarray(kept[:: max(1, -(-len(kept) // _MOST_POINTS))])


def _extent(lon: Array, lat: Array) -> tuple[float, float, float, float]:
    """Return west, east, south, north of all points with half a cell around them."""
    if lon.ndim == 2 and 1 not in lon.shape and is_regular(lon, lat):
        x, y = np.sort(continuous(lon[0])), np.sort(lat[:, 0])
        half = (x[-1] - x[0]) / (len(x) - 1) / 2, (y[-1] - y[0]) / (len(y) - 1) / 2
        return x[0] - half[0], x[-1] + half[0], max(-90.0, y[0] - half[1]), min(90.0, y[-1] + half[1])
    first = western_edge(lon)
    x, y = wrapped(lon, first)[np.isfinite(lon)], lat[np.isfinite(lat)]
    if not len(x):
        return -180.0, 180.0, -90.0, 90.0
    edge = 0.5 * max(np.ptp(x), np.ptp(y)) / np.sqrt(len(x)) or 0.5
    west, east = x.min() - edge, x.max() + edge
    if east - west > 350.0:
        west, east = first, first + 360.0
    return west, east, max(-90.0, y.min() - edge), min(90.0, y.max() + edge)


def _span(extent: tuple[float, float, float, float]) -> float:
    return extent[1] - extent[0] or 1.0


def _aspect(extent: tuple[float, float, float, float]) -> float:
    """Return how much longer a degree of latitude is drawn: as in the middle of the map, twice at most."""
    return min(2.0, 1.0 / max(0.5, float(np.cos(np.radians((extent[2] + extent[3]) / 2)))))


def _finish(axes: Axes, extent: tuple[float, float, float, float]) -> None:
    from matplotlib.collections import LineCollection

    west, east, south, north = extent
    lines = coastlines()
    if lines:
        shifted = [line + np.array([turn, 0.0]) for line in lines for turn in (-360.0, 0.0, 360.0)]
        axes.add_collection(LineCollection(shifted, colors=_COAST_COLOUR, linewidths=0.6), autolim=False)
    axes.set(xlim=(west, east), ylim=(south, north), xlabel="longitude (degrees east)")
    axes.set(ylabel="latitude (degrees north)", aspect=_aspect(extent))
    axes.xaxis.set_major_formatter(lambda lon, _: f"{lon + 360 if lon < -180 else lon - 360 if lon > 360 else lon:g}")
