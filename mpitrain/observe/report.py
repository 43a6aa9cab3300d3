"""`report.html`: report of a run in one self-contained file, which can be mailed and fits the screen of a phone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from mpitrain.durable_files import write_durably
from mpitrain.errors import writing
from mpitrain.observe.figures import GET_MATPLOTLIB, has_matplotlib
from mpitrain.observe.metrics_file import read_metrics
from mpitrain.observe.page.findings import Findings, render_findings
from mpitrain.observe.page.pairs import draw_pairs
from mpitrain.observe.page.skill import render_rows
from mpitrain.observe.progress import render_wall_time
from mpitrain.observe.step_times import NOTABLE_SHARE, describe_gpu, describe_step, timing_record
from mpitrain.observe.summary import RunSummary

_STYLE = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; }
* { box-sizing: border-box; }
body { margin: 0; background: #f8fafc; color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 .75rem; }
section { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: 1rem; margin-top: 1rem; }
.cards { display: grid; grid-template-columns: repeat(3, 1fr); gap: .75rem; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 12px; padding: .75rem; }
.card b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.card span, th { color: var(--soft); font-weight: normal; }
.card span { font-size: .85rem; }
svg { width: 100%; max-width: 38rem; height: auto; display: block; }
img { width: 100%; height: auto; display: block; }
svg text { font-family: system-ui, sans-serif !important; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .5rem .35rem 0; border-top: 1px solid var(--line); vertical-align: top; }
tr:first-child > * { border-top: 0; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.wide th, .wide td { overflow-wrap: normal; }
@media (max-width: 30rem) {
  .cards { grid-template-columns: repeat(2, 1fr); }
  .wide { font-size: .68rem; }
  .wide th, .wide td { padding-right: .15rem; }
}
section p { margin: 0 0 .75rem; }
pre { margin: 0; overflow-x: auto; font-size: .85rem; }
"""

# Labels of the summary's names for readers of the page.
_LABELS = {
    "world_size": "MPI ranks",
    "num_virtual_ranks": "microbatches of a step",
    "num_training_samples": "training samples",
    "num_validation_samples": "validation samples",
    "num_test_samples": "test samples",
    "num_dropped_samples": "samples left out",
    "num_unselected_points": "points not selected",
    "steps_before": "steps before it was resumed",
    "wall_time_s": "wall time",
    "mean_predictor_mse": "mean predictor's loss",
    "baselines": "losses of simple predictors",
    "noise_mse": "noise floor",
    "weights_sha256": "weights, SHA-256",
    "is_synthetic_data": "data is synthetic",
    "split": "held out for validation",
    "no_better_targets": "targets no better than their mean",
}
_NOTHING = Findings()
_COLUMNS = ("computing", "reading", "communicating", "waiting")


def write_report(run_folder: Path, summary: RunSummary | Mapping[str, Any], found: Findings = _NOTHING) -> Path:
    """Write `report.html` in a run folder from the summary and its `metrics.jsonl` and `config.yaml`, if they exist.

    `found`: further results on the network. A mapping's keys are the fields of RunSummary; other keys are shown in the
    table too. Without matplotlib the page has a notice instead of pictures. Raises OutputError.
    """
    values = dataclasses.asdict(summary) if isinstance(summary, RunSummary) else dict(summary)
    of_whole = summary.timing if isinstance(summary, RunSummary) else None
    values.pop("timing", None)  # shown in a separate section, like the test
    test = values.pop("test", None)
    metrics, config = run_folder / "metrics.jsonl", run_folder / "config.yaml"
    records = read_metrics(metrics) if metrics.exists() else []
    config_text = config.read_text(encoding="utf-8", errors="replace") if config.exists() else ""
    plots = _draw_plots(records, values, found)
    path = run_folder / "report.html"
    timing = (
        timing_record(of_whole) if of_whole else next((it["timing"] for it in records[::-1] if "timing" in it), None)
    )
    parts, description = plots | render_findings(found), "".join(f"<p>{escape(one)}</p>" for one in found.settings)
    page = render_report(run_folder.resolve().name, values, parts, config_text, timing, test, description)
    with writing(path, "is output.model_dir writable?"):
        write_durably(path, page.encode())
    return path


def notes_of_page(path: Path) -> list[str]:
    """Return notices on the page that `write_report` wrote."""
    return [] if has_matplotlib() else [f"{path}: has no pictures, which need matplotlib: {GET_MATPLOTLIB}"]


def render_report(
    name: str, values: Mapping[str, Any], plots: Mapping[str, str], config_text: str,
    timing: Mapping[str, Any] | None = None, test: Mapping[str, Any] | None = None, description: str = "",
) -> str:  # fmt: skip
    """Return the page; `plots` maps headings to SVG or HTML, which is trusted, while all other text is escaped.

    `timing` is a record of `timing_record`, `test` has the fields of `TestSkill`; `description` is that of the
    run, as trusted HTML.
    """
    sections = [_section("What was trained", description)] if description else []
    sections += [_section(heading, svg) for heading, svg in plots.items()]
    if test is not None:
        sections.append(_section("Test", _render_test(test)))
    if timing is not None:
        sections.append(_section("Where the time goes", render_timing(timing)))
    sections.append(_section("Summary", _render_table(values)))
    if config_text:
        sections.append(_section("Resolved settings", f"<pre>{escape(config_text)}</pre>"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: training report</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(name)}</h1>
<div class="cards">{_render_cards(values)}</div>
{"".join(sections)}
</main>
</body>
</html>
"""


def _draw_plots(
    records: list[dict[str, Any]],
    values: Mapping[str, Any],
    found: Findings,
) -> dict[str, str]:
    if not has_matplotlib():
        return {"Pictures": f"<p>Pictures need matplotlib: {GET_MATPLOTLIB}</p>"}
    from mpitrain.observe.plots import plot_jacobian_change, plot_learning_rate, plot_loss, series

    plots = {}
    guides = {"mean predictor": values.get("mean_predictor_mse"), "noise floor": values.get("noise_mse")}
    guides |= values.get("baselines") or {}
    if series(records, "train_loss")[0]:
        plots["Loss"] = plot_loss(records, guides)
    if series(records, "learning_rate")[0]:
        plots["Learning rate"] = plot_learning_rate(records)
    if series(records, "jacobian_change")[0]:
        plots["Change of the mean Jacobian"] = plot_jacobian_change(records)
    return plots | draw_pairs(found.pairs, found.course, [one.label for one in found.skills])


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>\n"


def _render_cards(values: Mapping[str, Any]) -> str:
    loss = values.get("validation_loss") if values.get("validation_loss") is not None else values.get("train_loss")
    mean_mse = values.get("mean_predictor_mse")
    wall_time_s = values.get("wall_time_s")
    cards = {
        "train loss": _render_value(values.get("train_loss")),
        "validation loss": _render_value(values.get("validation_loss")),
        "of the mean predictor's loss": f"{100 * loss / mean_mse:.3g} %" if loss is not None and mean_mse else "",
        "epochs": _render_value(values.get("epochs")),
        "MPI ranks": _render_value(values.get("world_size")),
        "wall time": render_wall_time(wall_time_s) if wall_time_s is not None else "",
    }
    return "".join(
        f'<div class="card"><b>{escape(text)}</b><span>{escape(label)}</span></div>'
        for label, text in cards.items()
        if text
    )


def _render_table(values: Mapping[str, Any]) -> str:
    rows = (
        (
            _LABELS.get(key, key.replace("_", " ")),
            render_wall_time(value) if key == "wall_time_s" else _render_value(value),
        )
        for key, value in values.items()
        if value is not None
    )
    return f"<table>{''.join(f'<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>' for key, text in rows)}</table>"


def _render_test(test: Mapping[str, Any]) -> str:
    """Return HTML: a sentence, and a table of each target's errors."""
    sentence = (
        f"Loss {test['loss']:.4g}, the mean predictor's {test['mean_predictor_loss']:.4g}, over "
        f"{test['num_samples']:,} samples of {test['of']}; {test['num_dropped']:,} left out."
    )
    head, keys = ["target", "units", "RMSE", "bias", "r2"], ("name", "units", "rmse", "bias", "r2")
    rows = [[_render_value(one[key]) for key in keys] for one in test["targets"]]
    if any(len(one["of_parts"]) > 1 for one in test["targets"]):
        head.append(f"RMSE of {test['parts']}")
        for row, parts in zip(rows, (one["of_parts"] for one in test["targets"]), strict=True):
            row.append(f"{min(parts):.4g} to {max(parts):.4g}" if parts else "")
    return f"<p>{escape(sentence)}</p>{render_rows(head, rows)}"


def _render_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(map(_render_value, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_render_value(one)}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def render_timing(timing: Mapping[str, Any]) -> str:
    """Return HTML: a sentence, and a table of each rank's seconds per step and memory."""
    sentence = (
        f"{describe_step(timing['step_s'])} a step, {timing['samples_per_s']:,.0f} samples/s in all. {_slowest(timing)}"
    )
    gpus = timing.get("gpus", [])
    head = ("rank", *_COLUMNS, "memory", *(["GPU"] if gpus else []))
    listed = _rows(timing["ranks"])
    if len(gpus) == len(listed):
        listed = [[*row, describe_gpu(gpu)] for row, gpu in zip(listed, gpus, strict=True)]
    return f"<p>{escape(sentence)}</p>{render_rows(head, listed)}"


def _rows(ranks: Mapping[str, Any]) -> list[list[str]]:
    """Return one row per rank, or rows of least, median and most if the record lists no single ranks."""
    is_listed = isinstance(ranks["waiting"], list)
    keys: Any = range(len(ranks["waiting"])) if is_listed else list(ranks["waiting"])
    return [
        [str(key), *(describe_step(ranks[name][key]) for name in _COLUMNS), f"{ranks['memory_mib'][key]:,.0f} MiB"]
        for key in keys
    ]


def _slowest(timing: Mapping[str, Any]) -> str:
    slowest = timing.get("slowest")
    if slowest is None:
        return ""
    node = f" Node {timing['slowest_node']} is the slowest." if "slowest_node" in timing else ""
    if slowest["share"] < NOTABLE_SHARE:
        return f"No rank delays the others by a tenth of the step or more.{node}"
    return (
        f"Rank {slowest['rank']} on {slowest['host']} is slow in {slowest['cause']}: the others wait "
        f"{describe_step(slowest['behind_s'])} a step for it ({100 * slowest['share']:.0f} %).{node}"
    )
