"""Tables, JSON and plots of `mpitrain bench step` and `scaling`."""

from __future__ import annotations

import io
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from mpitrain.bench.step_results import ScalingResult, StepResult
from mpitrain.bench.table import render_table
from mpitrain.cluster.cores import detect_usable_core_count
from mpitrain.cluster.cpu.identity import detect_cpu

_PANEL_INCH = (5.5, 3.6)


def machine_record() -> dict[str, Any]:
    """Return what figures depend on beside the program: processor, cores, versions."""
    from importlib.metadata import version

    return {
        "processor": detect_cpu().brand or platform.machine(),
        "cores": detect_usable_core_count(),
        "threads_per_rank": 1,
        "python": platform.python_version(),
        "torch": version("torch"),
        "mpitrain": version("mpitrain") if _is_installed("mpitrain") else None,
    }


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def render_steps(results: Sequence[StepResult], baseline: str) -> str:
    """Return a table for each network, batch and number of ranks, then a line for whatever could not be measured."""
    groups: dict[tuple[str, str, int], list[StepResult]] = {}
    for result in results:
        groups.setdefault(result.case.key[:3], []).append(result)
    columns = ("engine", "us a step", "p10", "p90", "rounds' spread", "steps/s", f"time / {baseline}")
    tables = [
        render_table(f"{network}, batch {batch}, {_ranks(num_ranks)}", columns, [_step_row(result) for result in group])
        for (network, batch, num_ranks), group in groups.items()
    ]
    return "\n".join([*tables, _machine_line(), *_error_lines(results)]) + "\n"


def _step_row(result: StepResult) -> list[str]:
    median_us = result.median_us
    return [
        result.case.engine.name,
        *(_number(time_us) for time_us in (median_us, result.p10_us, result.p90_us)),
        _percent(result.spread),
        _number(1e6 / median_us if median_us else None),
        _factor(result.ratio),
    ]


def render_scaling(results: Sequence[ScalingResult]) -> str:
    """Return a table for each network, engine and kind of scaling."""
    groups: dict[tuple[str, str, str], list[ScalingResult]] = {}
    for result in results:
        case = result.step.case
        groups.setdefault((case.network.name, case.engine.name, result.scaling), []).append(result)
    columns = ("ranks", "batch", "us a step", "rounds' spread", "speed-up", "efficiency")
    tables = [
        render_table(
            f"{network}, {engine}, {_SCALING_WORDS[scaling]}", columns, [_scaling_row(result) for result in group]
        )
        for (network, engine, scaling), group in groups.items()
    ]
    return "\n".join([*tables, _machine_line(), *_error_lines([result.step for result in results])]) + "\n"


_SCALING_WORDS = {"strong": "strong scaling: one batch on all ranks", "weak": "weak scaling: a batch on each rank"}


def _scaling_row(result: ScalingResult) -> list[str]:
    step = result.step
    return [
        str(step.case.num_ranks),
        str(step.case.global_batch_size),
        _number(step.median_us),
        _percent(step.spread),
        _factor(result.speedup),
        _factor(result.efficiency),
    ]


def _machine_line() -> str:
    machine = machine_record()
    return f"{machine['cores']} cores, {machine['processor']}, torch {machine['torch']}; one thread a rank"


def _error_lines(results: Sequence[StepResult]) -> list[str]:
    """Return a line for each obstacle, with all the engines that it stopped."""
    engines: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        if result.error:
            case = result.case
            where = f"{case.network.name}, batch {case.global_batch_size}"
            engines.setdefault((where, _ranks(case.num_ranks), result.error), []).append(case.engine.name)
    return [
        f"not measured: {where}, {ranks}, {', '.join(dict.fromkeys(names))}: {error}"
        for (where, ranks, error), names in engines.items()
    ]


def _ranks(num_ranks: int) -> str:
    return f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def draw_steps(results: Sequence[StepResult]) -> bytes:
    """Return a PNG: the median time of each engine's step, a panel for each network, batch and number of ranks."""
    groups: dict[tuple[str, str, int], list[StepResult]] = {}
    for result in results:
        if result.median_us is not None:
            groups.setdefault(result.case.key[:3], []).append(result)
    figure, panels = _figure(max(1, len(groups)))
    for panel, ((network, batch, num_ranks), group) in zip(panels, groups.items(), strict=False):
        names = [result.case.engine.name for result in group]
        panel.barh(names, [result.median_us for result in group], color="#2563eb")
        panel.set(title=f"{network}, batch {batch}, {_ranks(num_ranks)}", xlabel="us a step", xscale="log")
        panel.invert_yaxis()
    return _png(figure)


def draw_scaling(results: Sequence[ScalingResult]) -> bytes:
    """Return a PNG: efficiency against the number of ranks, strong and weak."""
    lines: Mapping[str, dict[str, list[ScalingResult]]] = {"strong": {}, "weak": {}}
    for result in results:
        if result.efficiency is not None:
            case = result.step.case
            lines[result.scaling].setdefault(f"{case.network.name}, {case.engine.name}", []).append(result)
    figure, panels = _figure(2)
    for panel, (scaling, series) in zip(panels, lines.items(), strict=True):
        for label, points in series.items():
            ranks = [point.step.case.num_ranks for point in points]
            panel.plot(ranks, [point.efficiency for point in points], marker="o", markersize=3, label=label)
        panel.axhline(1, color="#64748b", linestyle="--", linewidth=1)
        panel.set(title=f"{scaling} scaling", xlabel="ranks", ylabel="efficiency", ylim=(0, None))
        if series:
            panel.legend(frameon=False)
    return _png(figure)


def _figure(num_panels: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(2, num_panels)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(columns * _PANEL_INCH[0], rows * _PANEL_INCH[1]), layout="constrained")
    panels = [panel for row in figure.subplots(rows, columns, squeeze=False) for panel in row]
    for panel in panels:
        panel.grid(visible=True, color="#e2e8f0")
    return figure, panels


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content)
    return content.getvalue()
