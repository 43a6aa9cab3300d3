"""Map of values by longitude and latitude if they are known, otherwise by row and column.

J, I  rows and columns   N  unordered points
"""

from __future__ import annotations

import functools
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from mpitrain.observe.figures import draw_field, new_figure, no_value_background
from mpitrain.observe.maps.cells import cell_polygons, continuous, is_mesh, is_regular, western_edge, wrapped
from mpitrain.observe.maps.triangles import triangulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
_MOST_DRAWN = 1000, 2000  # rows and columns: more than a picture has pixels
_MOST_CELLS, _MOST_POINTS = 300_000, 100_000
# Area of all dots together, and limits of one dot's, in points squared.
_DOTS_AREA, _DOT_SIZES = 16_000.0, (3.0, 40.0)
# The outermost values at an end (first number, in percent of all) are left out of the range of the colours if they lie
# beyond the others by more than the second number times the others' range.
_RARE_PERCENT, _MOST_FOR_RARE = 0.5, 0.3
# Ratios of height to width beyond which a map in true proportions would be a line.
_FLATTEST, _TALLEST = 0.22, 3.0
_COAST_COLOUR, _VEIL, _LETTERS_AN_INCH = "0.25", 0.7, 9.5
_SMALL_POINTS, _SMALL_LETTERS_AN_INCH = 8, 12.0
Colours = dict[str, Any]
Layers = list[tuple[npt.NDArray[np.bool_], Colours]]
"""Masks of values that are drawn together, with their colours."""
_FILE = Path(__file__).with_name("coastlines_110m.npz")


@dataclass(frozen=True)
class MapLook:
    """Texts and colours of a map."""

    title: str
    """Title; wrapped to the width of the map."""
    label: str
    """Label of the colour bar: the variable with its units."""
    colours: str = "viridis"
    """Name of matplotlib's colour map."""
    limits: tuple[float, float] | None = None
    """Values of the first and the last colour; None: those of the values, without rare extremes."""


def error_look(title: str, label: str, errors: Array) -> MapLook:
    """Return the look of a map of predictions minus data, with 0 in the middle of the colours.

    Parameters
    ----------
    title : str
        Title of the map.
    label : str
        The variable with its units.
    errors : ndarray of float, any shape
        Predictions minus data; values that are not finite are ignored.

    Returns
    -------
    MapLook
        The limits leave out the largest 0.5 % of errors, so that a few very large ones do not make the others look
        white. They are -1 and 1 if all errors are 0 or none is finite.
    """
    sizes = np.abs(errors[np.isfinite(errors)])
    largest = float(np.percentile(sizes, 100 - _RARE_PERCENT, method="higher")) if sizes.size else 0.0
    return MapLook(title, f"error of {label}", "RdBu_r", (-largest or -1.0, largest or 1.0))


def draw_map(
    values: Array, places: tuple[Array, Array] | None, look: MapLook, pale: npt.NDArray[np.bool_] | None = None,
    width_inch: float = 8.0,
) -> Figure:  # fmt: skip
    """Return a map of values, north up: grey where there is no value, pale colours where `pale`.

    Parameters
    ----------
    values : ndarray of float, shape (J, I) or (N,)
        Values; NaN and infinity are no values. Values (N,) without known
        places are drawn as one row.
    places : tuple of two ndarrays of float in the shape of `values`, or None
        Longitude and latitude in degrees; NaN: unknown. If None, or if no value has a known place, the axes are row
        and column, with the first row at the bottom.
    look : MapLook
        Texts and colours.
    pale : ndarray of bool in the shape of `values`, optional
        Values to draw in pale colours. They do not count for the limits of the colours. Default: none.
    width_inch : float
        Width of the figure in inches; the height follows from the extent.

    Returns
    -------
    matplotlib.figure.Figure
        Values on a grid of rows and columns are drawn as cells; all others as triangles if they are points of a mesh,
        as dots if they are scattered. Cells and points are thinned if there are more than a picture can show.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    if places is not None and not _are_placed(values, places):
        places = None
    if places is None and values.ndim == 1:
        values, pale = values[np.newaxis], None if pale is None else pale[np.newaxis]
    if places is not None and _is_grid(values) and not (is_regular(*places) or is_mesh(*places)):
        values, places, pale = _as_points(values, places, pale)
    if places is not None and _is_grid(values):
        part = _part_with_values(values)
        values, places = values[part], (places[0][part], places[1][part])
        pale = None if pale is None else pale[part]
    # Pale colours instead of marks on the points, which would hide the values.
    hidden = np.zeros(values.shape, dtype=bool) if pale is None else pale
    colours = _colours(values[~hidden], look)
    layers = [(~hidden, colours), *([(hidden, _paled(colours))] if hidden.any() else [])]
    if places is None:
        figure, axes = new_figure(width_inch, _height(width_inch, values.shape[0] / values.shape[1]))
        drawn = [draw_field(axes, np.where(shown, values, np.nan), **own) for shown, own in layers]
    else:
        extent = _extent(*places)
        ratio = _aspect(extent) * (extent[3] - extent[2]) / (extent[1] - extent[0] or 1.0)
        figure, axes = new_figure(width_inch, _height(width_inch, ratio))
        draw = _draw_grid if _is_grid(values) else _draw_points
        no_value_background(axes)
        drawn = draw(axes, values, places, layers)
        _finish(axes, extent, _aspect(extent) if _FLATTEST < ratio < _TALLEST else "auto")
    extend = _extend(values, colours)
    label = textwrap.fill(look.label, int(_SMALL_LETTERS_AN_INCH * figure.get_figheight() * 0.75))
    label += "" if extend == "neither" else f"\nall values: {np.nanmin(values):.4g} to {np.nanmax(values):.4g}"
    figure.colorbar(drawn[0], ax=axes, extend=extend).set_label(label, size=_SMALL_POINTS)
    axes.set_title(textwrap.fill(look.title, int(_LETTERS_AN_INCH * width_inch)), fontsize=10)
    return figure


def _are_placed(values: Array, places: tuple[Array, Array]) -> bool:
    """Tell whether the place of any value is known; without values, whether any place is known."""
    known = np.isfinite(places[0]) & np.isfinite(places[1])
    return bool((known & np.isfinite(values)).any() if np.isfinite(values).any() else known.any())


def _as_points(
    values: Array, places: tuple[Array, Array], pale: npt.NDArray[np.bool_] | None
) -> tuple[Array, tuple[Array, Array], npt.NDArray[np.bool_] | None]:
    """Return values, places and `pale` as points (N,), those with a value first: only one is drawn at each place."""
    order = np.argsort(~np.isfinite(values.reshape(-1)), kind="stable")
    lon, lat = (one.reshape(-1)[order] for one in places)
    return values.reshape(-1)[order], (lon, lat), None if pale is None else pale.reshape(-1)[order]


def _is_grid(values: Array) -> bool:
    return values.ndim == 2 and 1 not in values.shape


def _part_with_values(values: Array) -> tuple[slice, slice]:
    """Return slices of the rows and columns around all values, with a margin, to leave out the rest of a globe."""
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

    low, high = look.limits or _limits(values[np.isfinite(values)])
    return {"cmap": colormaps[look.colours], "vmin": low, "vmax": high}


def _limits(values: Array) -> tuple[float, float]:
    """Return the limits of the colours for values (N,); rare extremes that would take many colours are left out."""
    if not values.size:
        return 0.0, 1.0
    low, high = (float(one) for one in (values.min(), values.max()))
    first = float(np.percentile(values, _RARE_PERCENT, method="lower"))
    last = float(np.percentile(values, 100 - _RARE_PERCENT, method="higher"))
    most = _MOST_FOR_RARE * (last - first)
    if most == 0.0:
        return low, high
    return first if first - low > most else low, last if high - last > most else high


def _extend(values: Array, colours: Colours) -> str:
    """Return the sides on which values exceed the colours' limits, as matplotlib's `extend`."""
    finite = values[np.isfinite(values)]
    below, above = bool((finite < colours["vmin"]).any()), bool((finite > colours["vmax"]).any())
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _paled(colours: Colours) -> Colours:
    from matplotlib.colors import ListedColormap

    full = colours["cmap"](np.linspace(0.0, 1.0, 256))
    return colours | {"cmap": ListedColormap(_VEIL + (1.0 - _VEIL) * full)}


def _draw_grid(axes: Axes, values: Array, places: tuple[Array, Array], layers: Layers) -> list[Any]:
    """Draw cells: a regular grid by its coordinates, other grids by the corners of their cells."""
    lon, lat = places
    if is_regular(lon, lat):
        steps = tuple(max(1, -(-size // most)) for size, most in zip(values.shape, _MOST_DRAWN, strict=True))
        part = slice(None, None, steps[0]), slice(None, None, steps[1])
        x, y = continuous(lon[0, part[1]]), lat[part[0], 0]
        order = np.argsort(x), np.argsort(y)  # coordinates can be in any order
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
    corners: Any = polygons[is_value]  # matplotlib's stubs want lists, which are four times slower
    # No antialiasing, which would show the background between cells.
    drawn = PolyCollection(corners, cmap=colours["cmap"], edgecolors="face", linewidths=0.1,
                           antialiaseds=False)  # fmt: skip
    drawn.set_array(values.data[is_value])
    drawn.set_clim(colours["vmin"], colours["vmax"])
    axes.add_collection(drawn, autolim=False)
    return drawn


def _draw_points(axes: Axes, values: Array, places: tuple[Array, Array], layers: Layers) -> list[Any]:
    """Draw triangles between the points of a mesh; dots if points are scattered or too few."""
    from matplotlib.tri import Triangulation

    lon, lat, values = (np.asarray(one, dtype=np.float64).reshape(-1) for one in (*places, values))
    kept = _points_once(lon, lat)
    lon, lat, values = lon[kept], lat[kept], values[kept]
    layers = [(shown.reshape(-1)[kept], own) for shown, own in layers]
    west = western_edge(lon)
    found = triangulate(lon, lat, west)
    if found is None:
        size = float(np.clip(_DOTS_AREA / max(1, len(values)), *_DOT_SIZES))
        with_value = np.isfinite(values)
        return [
            axes.scatter(wrapped(lon[on & with_value], west), lat[on & with_value], c=values[on & with_value], s=size,
                         linewidths=0.0, **own)
            for on, own in layers
        ]  # fmt: skip
    whole, vertices = found
    is_empty = ~np.isfinite(values)
    filled = np.where(is_empty, layers[0][1]["vmin"], values)[vertices]
    drawn = []
    for number, (shown, own) in enumerate(layers):
        # A triangle is in the first layer if all its corners are, otherwise in the second.
        missing = is_empty if number else is_empty | ~shown
        mask = whole.mask | missing[vertices][whole.triangles].any(axis=1)
        if number:
            mask |= ~shown[vertices][whole.triangles].any(axis=1)
        part = Triangulation(whole.x, whole.y, whole.triangles, mask)
        drawn.append(axes.tripcolor(part, filled, shading="gouraud", **own))
    return drawn


def _points_once(lon: Array, lat: Array) -> npt.NDArray[np.int64]:
    """Return the index of the first point at each place: triangulations need distinct points."""
    placed = np.flatnonzero(np.isfinite(lon) & np.isfinite(lat))
    once = np.unique(lon[placed] % 360.0 + 1j * lat[placed], return_index=True)[1]
    kept = np.sort(placed[once])
    return np.asarray(kept[:: max(1, -(-len(kept) // _MOST_POINTS))])


def _extent(lon: Array, lat: Array) -> tuple[float, float, float, float]:
    """Return the west, east, south and north limits of all points, with half a cell around them."""
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


def _aspect(extent: tuple[float, float, float, float]) -> float:
    """Return the drawn length of a degree of latitude by one of longitude: true in the map's middle, at most 2."""
    return min(2.0, 1.0 / max(0.5, float(np.cos(np.radians((extent[2] + extent[3]) / 2)))))


def _finish(axes: Axes, extent: tuple[float, float, float, float], aspect: float | Literal["auto"]) -> None:
    from matplotlib.collections import LineCollection

    west, east, south, north = extent
    shifted = [line + np.array([turn, 0.0]) for line in coastlines() for turn in (-360.0, 0.0, 360.0)]
    axes.add_collection(LineCollection(shifted, colors=_COAST_COLOUR, linewidths=0.6), autolim=False)
    axes.set(xlim=(west, east), ylim=(south, north), xlabel="longitude (degrees east)")
    axes.set(ylabel="latitude (degrees north)", aspect=aspect)
    axes.xaxis.set_major_formatter(lambda lon, _: f"{lon + 360 if lon < -180 else lon - 360 if lon > 360 else lon:g}")


@functools.cache
def coastlines() -> tuple[npt.NDArray[Any], ...]:
    """Return coastlines: lines (N, 2) of longitude (-180 to 180) and latitude, in degrees.

    Source: Natural Earth's land at 1:110 million (version 4.1, public domain), stored as points in hundredths of a
    degree and the number of points of each line, without edges that only close a polygon at the antimeridian or at the
    South Pole.
    """
    with np.load(_FILE) as stored:
        points = stored["hundredths_of_degrees"] / 100.0
        ends = np.cumsum(stored["num_points"])
    return tuple(np.split(points, ends[:-1]))
