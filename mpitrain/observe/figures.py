"""Figures without matplotlib's global state and without a display: new figures, shared drawing functions, PNG.

J, I  rows and columns of a field      N  values
"""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
GUIDE_COLOUR, _GRID_COLOUR, _NO_VALUE_COLOUR = "#64748b", "#e2e8f0", "0.75"
_PANEL_INCH = (5.5, 3.6)


GET_MATPLOTLIB = "python -m pip install matplotlib"


def require_matplotlib(what: str) -> None:
    """Raise MissingDependencyError if matplotlib is not installed; `what` is the subject of its message."""
    if not has_matplotlib():
        raise MissingDependencyError(f"{what} needs matplotlib: {GET_MATPLOTLIB}")


def has_matplotlib() -> bool:
    """Tell whether matplotlib is installed, by importing it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(
    width_inch: float, height_inch: float, margins_inch: tuple[float, float, float, float] | None = None
) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes.

    `margins_inch` (left, right, bottom, top): space for labels. If None, matplotlib computes it, which takes as long
    as drawing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inch, height_inch), layout=None if margins_inch else "constrained")
    if margins_inch:
        left, right, bottom, top = margins_inch
        figure.subplots_adjust(left / width_inch, bottom / height_inch, 1 - right / width_inch, 1 - top / height_inch)
    return figure, figure.add_subplot()


def new_panels(num_rows: int, num_columns: int) -> tuple[Figure, list[Any]]:
    """Return a figure, and its panels with grid lines row by row."""
    from matplotlib.figure import Figure

    size_inch = (num_columns * _PANEL_INCH[0], num_rows * _PANEL_INCH[1])
    figure = Figure(figsize=size_inch, layout="constrained")
    panels = [panel for row in figure.subplots(num_rows, num_columns, squeeze=False) for panel in row]
    for panel in panels:
        panel.grid(visible=True, color=_GRID_COLOUR)
    return figure, panels


def no_value_background(axes: Axes) -> None:
    """Set a grey background, which shows where there is no value."""
    axes.set_facecolor(_NO_VALUE_COLOUR)


def draw_field(axes: Axes, values: Array, **options: Any) -> Any:
    """Draw a field (J, I), grey where it has no value; return matplotlib's image."""
    no_value_background(axes)
    axes.set(xlabel="column", ylabel="row")
    masked = np.ma.masked_invalid(values)
    return axes.imshow(masked, origin="lower", aspect="auto", interpolation="nearest", **options)


def draw_density(figure: Figure, axes: Axes, truth: Array, prediction: Array, num_cells: int) -> None:
    """Draw `prediction` (N,) against `truth` (N,), N > 0, as a density, which gives a small file for any N."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogFormatter

    low = float(min(truth.min(), prediction.min()))
    high = float(max(truth.max(), prediction.max()))
    low, high = (low, high) if low < high else (low - 0.5, high + 0.5)  # a constant needs a range to draw
    cells = axes.hexbin(
        truth, prediction, gridsize=num_cells, extent=(low, high, low, high), norm=LogNorm(), cmap="viridis", mincnt=1
    )
    axes.plot([low, high], [low, high], color=GUIDE_COLOUR, linestyle="--", linewidth=1.2, label="equal")
    figure.colorbar(cells, ax=axes, label="samples in a cell", format=LogFormatter())


def render_png(figure: Figure, dots_per_inch: int = 120) -> bytes:
    """Return the figure as PNG; the same figure and version of matplotlib give the same bytes.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    dots_per_inch : int
        Resolution in pixels per inch.

    Returns
    -------
    bytes
        The content of a PNG file, marked as written by this package (see `durable_files.IMAGE_MARK`).
    """
    content = BytesIO()
    figure.savefig(content, format="png", dpi=dots_per_inch, metadata={"Software": "mpitrain"})
    return content.getvalue()


def image_of(png: bytes, text: str = "") -> str:
    """Return an HTML image with the picture embedded; `text` is its alternative text."""
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
