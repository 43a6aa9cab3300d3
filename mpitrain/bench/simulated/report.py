"""Tables, JSON and the figure of `mpitrain bench simulate`; every figure of a simulation says that it is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mpitrain.bench.output import format_bytes, render_table
from mpitrain.bench.simulated.cluster import Cluster
from mpitrain.bench.simulated.prediction import SCALINGS, Outcome, Simulated, half_communication, with_memory
from mpitrain.bench.simulated.workloads import Costs
from mpitrain.bench.step_report import SCALING_WORDS
from mpitrain.bench.step_results import grouped
from mpitrain.comm.virtual_ranks import MOST_MICROBATCHES
from mpitrain.observe.figures import GUIDE_COLOUR, new_panels, render_png

_DOTS_PER_INCH = 100
MOST_ROWS = 128  # that the compiled engine adds inside of its step: `largest_tree_rows` in dense_step.hpp
_BY_MESSAGES = (
    "note: {name}: engine {engine} adds {num_bytes} by messages among all ranks; what is simulated is adding in the "
    "nodes' memory"
)


def render_outcome(outcome: Outcome, cluster: Cluster | None) -> str:
    """Return a table for each run and kind of scaling, and one for simulated steps beside real ones."""
    parts = []
    for (run, scaling), results in grouped(outcome.predicted, _series).items():
        parts.append(_curve(f"simulated: {run}, {SCALING_WORDS[scaling]}", results))
    if outcome.validated:
        parts.append(_validation(outcome.validated))
    parts += [
        _BY_MESSAGES.format(name=run.name, engine=costs.engine, num_bytes=format_bytes(costs.row_bytes))
        for run, costs in outcome.costs
        if not costs.adds_in_memory
    ]
    if any(one.point.num_ranks > MOST_MICROBATCHES for one in outcome.predicted):
        parts.append(
            f"note: more than {MOST_MICROBATCHES} ranks compute as training.virtual_ranks=RANKS asks, where the batch "
            "has rows for all"
        )
    if any(one.point.num_ranks // one.num_nodes > MOST_ROWS for one in outcome.predicted):
        parts.append(f"note: with more than {MOST_ROWS} ranks a node the engine sends messages among all ranks instead")
    if cluster is not None:
        parts += [
            f"simulated {run.name}: {with_memory(cluster, costs).describe()} {_source(cluster, costs)}"
            for run, costs in outcome.costs
        ]
    return (
        "\n".join([*parts, "computing as measured here on one rank, without any other load; no rank is ever late"])
        + "\n"
    )


def _source(cluster: Cluster, costs: Costs) -> str:
    if cluster.memory_bandwidth_gb_s is not None:
        return "as described"
    return "as measured on 2 ranks here" if costs.adds_in_memory else "as assumed: give node.memory_bandwidth_gb_s"


def _series(result: Simulated) -> tuple[str, str]:
    return result.point.run.name, result.point.scaling


def _curve(title: str, results: Sequence[Simulated]) -> str:
    columns = ("ranks", "nodes", "batch", "computing us", "simulated us a step", "communication", "speed-up",
               "efficiency")  # fmt: skip
    rows = [
        (str(one.point.num_ranks), str(one.num_nodes), str(one.point.batch_size), f"{one.computing_us:.1f}",
         f"{one.step_us:.1f}", f"{one.communication:.0%}", f"{one.speedup:.2f}", f"{one.efficiency:.2f}")
        for one in results
    ]  # fmt: skip
    half = half_communication(results)
    end = "at none of these" if half is None else f"from {half} ranks on"
    return render_table(title, columns, rows) + f"\nsimulated: communication takes half of a step or more {end}\n"


def _validation(results: Sequence[Simulated]) -> str:
    cores = "simulated against real steps on this machine"
    columns = ("network and engine", "scaling", "ranks", "real us a step", "simulated us a step", "error")
    rows = [
        (one.point.run.name, one.point.scaling, str(one.point.num_ranks),
         "-" if one.real_us is None else f"{one.real_us:.1f}", f"{one.step_us:.1f}",
         "-" if one.error_percent is None else f"{one.error_percent:+.0f} %")
        for one in results
    ]  # fmt: skip
    return render_table(cores, columns, rows)


def outcome_record(outcome: Outcome, cluster: Cluster | None) -> dict[str, Any]:
    """Return the same for a JSON file."""
    return {
        "label": "simulated",
        "cluster": asdict(cluster) if cluster else None,
        "measured": [
            {"run": run.name, "engine_used": costs.engine, "row_bytes": costs.row_bytes, "row_us": costs.row_s * 1e6}
            for run, costs in outcome.costs
        ],
        "rows": [_record(one) for one in outcome.predicted],
        "validation": [
            {**_record(one), "real_us": one.real_us, "error_percent": one.error_percent} for one in outcome.validated
        ],
    }


def _record(one: Simulated) -> dict[str, Any]:
    return {
        "label": "simulated",
        "network": one.point.run.network.name,
        "engine": one.point.run.engine.name,
        "scaling": one.point.scaling,
        "ranks": one.point.num_ranks,
        "nodes": one.num_nodes,
        "global_batch_size": one.point.batch_size,
        "measured_computing_us": one.computing_us,
        "simulated_us": one.step_us,
        "communication": one.communication,
        "speedup": one.speedup,
        "efficiency": one.efficiency,
    }


def draw_outcome(outcome: Outcome) -> bytes:
    """Return a PNG: above the step's time and its computing, below efficiency, against ranks, strong and weak."""
    figure, panels = new_panels(2, len(SCALINGS))
    for column, scaling in enumerate(SCALINGS):
        times, efficiencies = panels[column], panels[len(SCALINGS) + column]
        own = [one for one in outcome.predicted if one.point.scaling == scaling]
        for name, points in grouped(own, lambda one: one.point.run.name).items():
            ranks = [one.point.num_ranks for one in points]
            (line,) = times.plot(ranks, [one.step_us for one in points], marker="o", markersize=3, label=name)
            computing = [one.computing_us for one in points]
            times.plot(ranks, computing, color=line.get_color(), linestyle=":", label=f"{name}: computing (measured)")
            efficiencies.plot(ranks, [one.efficiency for one in points], marker="o", markersize=3, label=name)
        efficiencies.axhline(1, color=GUIDE_COLOUR, linestyle="--", linewidth=1)
        times.set(title=f"simulated, {scaling} scaling", xlabel="ranks", ylabel="us a step")
        times.set(xscale="log", yscale="log")
        efficiencies.set(title=f"simulated, {scaling} scaling", xlabel="ranks", ylabel="efficiency", xscale="log")
        efficiencies.set(ylim=(0, None))
        if own:
            times.legend(frameon=False)
    return render_png(figure, _DOTS_PER_INCH)
