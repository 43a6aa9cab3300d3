"""Plots of the report as SVG text, drawn by matplotlib without its global state and without a display."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpitrain.observe.figures import GUIDE_COLOUR, draw_density, new_figure

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARGINS_INCH = 0.85, 0.15, 0.5, 0.2  # left, right, bottom, top
_ROOM_FOR_LEGEND_INCH = 0.5
TRAIN_COLOUR, VALIDATION_COLOUR, TRUTH_COLOUR = "#2563eb", "#ea580c", "#334155"
_STYLE: Any = {  # Any: the types of these keys differ between versions of matplotlib
    "axes.axisbelow": True,
    "axes.edgecolor": "#94a3b8",
    "axes.grid": True,
    "axes.labelcolor": "#334155",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.color": "#e2e8f0",
    "svg.fonttype": "none",  # keep text as text: small, searchable, in the reader's font
    "text.parse_math": False,  # a name may contain $
    "svg.hashsalt": "mpitrain",  # the same run gives the same bytes
    "xtick.color": "#475569",
    "ytick.color": "#475569",
}
Records = Sequence[Mapping[str, Any]]


def plot_loss(records: Records, guides: Mapping[str, float | None]) -> str:
    """Draw training and validation loss against the epoch, log scale; `guides` are named horizontal lines."""
    figure, axes = _new_figure(margins_inch=(*_MARGINS_INCH[:3], _ROOM_FOR_LEGEND_INCH))
    has_positive = False
    for key, colour in (("train_loss", TRAIN_COLOUR), ("validation_loss", VALIDATION_COLOUR)):
        epochs, losses = series(records, key)
        if epochs:
            axes.plot(epochs, losses, color=colour, label=key.replace("_", " "), marker=_marker(epochs))
        has_positive |= any(loss > 0 for loss in losses)
    for (label, value), style in zip(guides.items(), ("--", ":", "-."), strict=False):
        if value is not None and value > 0:
            axes.axhline(value, color=GUIDE_COLOUR, linestyle=style, linewidth=1.2, label=label)
    if has_positive:
        _use_log_scale(axes)
    # Above the axes: inside them a curve or a guide would cross it.
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.01), borderaxespad=0)
    axes.set(xlabel="epoch", ylabel="mean squared error")
    _count_epochs(axes)
    return _render_svg(figure, "loss")


def plot_learning_rate(records: Records) -> str:
    """Draw the learning rate against the epoch."""
    figure, axes = _new_figure(height_inch=1.8)
    epochs, rates = series(records, "learning_rate")
    axes.plot(epochs, rates, color=TRAIN_COLOUR, drawstyle="steps-post", marker=_marker(epochs))
    axes.set(xlabel="epoch", ylabel="learning rate")
    _count_epochs(axes)
    axes.set_ylim(0, 1.1 * max(rates, default=0) or 1)
    return _render_svg(figure, "rate")


def plot_jacobian_change(records: Records) -> str:
    """Draw the relative change of the mean Jacobian against the epoch, log scale."""
    figure, axes = _new_figure(height_inch=1.8)
    epochs, changes = series(records, "jacobian_change")
    axes.plot(epochs, changes, color=TRAIN_COLOUR, marker=_marker(epochs))
    if any(change > 0 for change in changes):
        _use_log_scale(axes)
    axes.set(xlabel="epoch", ylabel="relative change")
    _count_epochs(axes)
    return _render_svg(figure, "jacobian")


def plot_prediction(pairs: npt.NDArray[Any], label: str, prefix: str) -> str:
    """Draw prediction against truth, `pairs[1]` against `pairs[0]` (N,), as a density: a small file for any N.

    `label`: the target with its units. `prefix` makes the picture's SVG identifiers unique in the page.
    """
    figure, axes = _new_figure(3.6, margins_inch=None)  # labels have any length
    draw_density(figure, axes, pairs[0], pairs[1], num_cells=48)
    of = f" of {label}" if label else ""
    axes.set(xlabel=f"truth{of}", ylabel=f"prediction{of}", aspect="equal")
    axes.legend(frameon=False)
    return _render_svg(figure, prefix)


def plot_course(
    pairs: npt.NDArray[Any], parts: Sequence[npt.NDArray[Any]], dates: Sequence[str], prefix: str
) -> str:  # fmt: skip
    """Draw truth and prediction, `pairs` (2, T), against time, `dates` (T,); lines are interrupted between `parts`."""
    import numpy as np

    figure, axes = _new_figure(2.2, margins_inch=None)
    for values, colour, name in zip(pairs, (TRUTH_COLOUR, VALIDATION_COLOUR), ("truth", "prediction"), strict=True):
        for number, part in enumerate(parts):
            shown = name if number == 0 else None
            axes.plot(part, values[part], color=colour, linewidth=1, marker=_marker(part), label=shown)
    for part in parts[1:]:
        axes.axvline(part[0] - 0.5, color=GUIDE_COLOUR, linestyle=":", linewidth=1)
    marks = np.unique(np.linspace(0, len(dates) - 1, 4).astype(int))
    axes.set_xticks(marks, [dates[mark] for mark in marks], fontsize=7)
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.01), borderaxespad=0)
    return _render_svg(figure, prefix)


def plot_derivatives(mean: Any, target_names: Sequence[str], input_names: Sequence[str]) -> str:
    """Draw mean derivatives (O, F) as colours, each target's as a share of its largest absolute value."""
    import numpy as np

    largest = np.abs(mean).max(axis=1, keepdims=True)
    figure, axes = _new_figure(min(8.0, 1.6 + 0.2 * len(target_names)), margins_inch=None)  # names have any length
    axes.grid(visible=False)
    shares = mean / np.where(largest > 0, largest, 1.0)
    drawn = axes.pcolormesh(shares[::-1], cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    for axis, names in ((axes.xaxis, input_names), (axes.yaxis, target_names[::-1])):
        step = max(1, -(-len(names) // 24))
        axis.set_ticks(np.arange(0, len(names), step) + 0.5, names[::step], fontsize=7, parse_math=False)
    axes.tick_params(axis="x", rotation=90)
    figure.colorbar(drawn, ax=axes, label="share of the largest")
    return _render_svg(figure, "derivatives")


def series(records: Records, key: str) -> tuple[list[float], list[float]]:
    """Return the epochs in order and the last value of `key` in each; records without either are left out."""
    last = {
        record["epoch"]: record[key] for record in records if _is_number(record, "epoch") and _is_number(record, key)
    }
    epochs = sorted(last)
    return epochs, [last[epoch] for epoch in epochs]


def _marker(points: Sequence[float] | npt.NDArray[Any]) -> str:
    return "." if len(points) < 3 else ""  # a line through one point is invisible


def _is_number(record: Mapping[str, Any], key: str) -> bool:
    return isinstance(record.get(key), int | float)


def _new_figure(
    height_inch: float = 2.9, margins_inch: tuple[float, float, float, float] | None = _MARGINS_INCH
) -> tuple[Figure, Axes]:
    from matplotlib import rc_context

    with rc_context(_STYLE):
        return new_figure(5.0, height_inch, margins_inch)


def _use_log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers: typeset powers would double the time of a plot."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log", nonpositive="mask")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())


def _count_epochs(axes: Axes) -> None:
    """Put the ticks of the horizontal axis at whole epochs."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def _render_svg(figure: Figure, prefix: str) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(_STYLE):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)  # identifiers must be unique in a page
    return text[text.index("<svg") :]
