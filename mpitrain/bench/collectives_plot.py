"""Time and bus bandwidth against message size, as a PNG, drawn without a display and without global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

_PANEL_INCH = (5.5, 3.6)


def draw_collectives(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a PNG: a row a collective; left the median time with its 10-90 % band, right busbw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    collectives = list(dict.fromkeys(record["collective"] for record in records))
    size_inch = (2 * _PANEL_INCH[0], len(collectives) * _PANEL_INCH[1])
    figure = Figure(figsize=size_inch, layout="constrained")
    panels = figure.subplots(len(collectives), 2, squeeze=False)
    for collective, (left, right) in zip(collectives, panels, strict=True):
        _draw_row([record for record in records if record["collective"] == collective], left, right)
        left.set_title(collective)
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content)
    return content.getvalue()


def _draw_row(records: Sequence[Mapping[str, Any]], left: Any, right: Any) -> None:
    for transport in dict.fromkeys(record["transport"] for record in records):
        own = [record for record in records if record["transport"] == transport]
        sizes = [record["num_bytes"] for record in own]
        (line,) = left.plot(sizes, [record["median_us"] for record in own], marker="o", markersize=3, label=transport)
        low, high = ([record[key] for record in own] for key in ("p10_us", "p90_us"))
        left.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        right.plot(sizes, [record["busbw_gb_s"] for record in own], marker="o", markersize=3, label=transport)
    left.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us a call")
    right.set(xscale="log", xlabel="bytes", ylabel="busbw in GB/s")
    left.legend(frameon=False)
    for panel in (left, right):
        panel.grid(visible=True, color="#e2e8f0")
