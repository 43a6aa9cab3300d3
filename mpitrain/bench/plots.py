"""The figures of `mpitrain bench` as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpitrain.bench.step_report import ranks_text
from mpitrain.bench.step_results import ScalingResult, StepResult, grouped
from mpitrain.observe import render_png
from mpitrain.observe.figures import GUIDE_COLOUR, new_panels

_DOTS_PER_INCH = 100


def draw_collectives(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a PNG with one row per collective; left: median time with its 10-90 % band, right: busbw."""
    collectives = list(dict.fromkeys(record["collective"] for record in records))
    figure, panels = new_panels(len(collectives), 2)
    for collective, left, right in zip(collectives, panels[::2], panels[1::2], strict=True):
        _draw_row([record for record in records if record["collective"] == collective], left, right)
        left.set_title(collective)
    return render_png(figure, _DOTS_PER_INCH)


def _draw_row(records: Sequence[Mapping[str, Any]], left: Any, right: Any) -> None:
    for transport in dict.fromkeys(record["transport"] for record in records):
        own = [record for record in records if record["transport"] == transport]
        sizes = [record["num_bytes"] for record in own]
        (line,) = left.plot(sizes, [record["median_us"] for record in own], marker="o", markersize=3, label=transport)
        low, high = ([record[key] for record in own] for key in ("p10_us", "p90_us"))
        left.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        right.plot(sizes, [record["busbw_gb_s"] for record in own], marker="o", markersize=3, label=transport)
    left.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us per call")
    right.set(xscale="log", xlabel="bytes", ylabel="busbw in GB/s")
    left.legend(frameon=False)


def draw_steps(results: Sequence[StepResult]) -> bytes:
    """Return a PNG of each engine's median step time, with one panel per network, batch and number of ranks."""
    groups = grouped((result for result in results if result.median_us is not None), lambda one: one.case.key[:3])
    num_columns = min(2, max(1, len(groups)))
    figure, panels = new_panels(-(-max(1, len(groups)) // num_columns), num_columns)
    for panel, ((network, batch, num_ranks), group) in zip(panels, groups.items(), strict=False):
        names = [result.case.engine.name for result in group]
        panel.barh(names, [result.median_us for result in group], color="#2563eb")
        panel.set(title=f"{network}, batch {batch}, {ranks_text(num_ranks)}", xlabel="us per step", xscale="log")
        panel.invert_yaxis()
    return render_png(figure, _DOTS_PER_INCH)


def draw_scaling(results: Sequence[ScalingResult]) -> bytes:
    """Return a PNG of efficiency against the number of ranks, for strong and weak scaling."""
    figure, panels = new_panels(1, 2)
    for panel, scaling in zip(panels, ("strong", "weak"), strict=True):
        measured = (one for one in results if one.scaling == scaling and one.efficiency is not None)
        series = grouped(measured, lambda one: f"{one.step.case.network.name}, {one.step.case.engine.name}")
        for label, points in series.items():
            ranks = [point.step.case.num_ranks for point in points]
            panel.plot(ranks, [point.efficiency for point in points], marker="o", markersize=3, label=label)
        panel.axhline(1, color=GUIDE_COLOUR, linestyle="--", linewidth=1)
        panel.set(title=f"{scaling} scaling", xlabel="ranks", ylabel="efficiency", ylim=(0, None))
        if series:
            panel.legend(frameon=False)
    return render_png(figure, _DOTS_PER_INCH)
