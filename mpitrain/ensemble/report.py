"""The page of an ensemble: members' losses, settings against skill, spread against error.

M  members      N  samples
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.durable_files import write_durably
from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.ensemble.held_out import held_out_values
from mpitrain.errors import DataError, MissingDependencyError, OutputError
from mpitrain.inference.ensemble import MEMBERS
from mpitrain.models.files.stored_network import StoredNetwork
from mpitrain.observe.figures import GUIDE_COLOUR, new_figure, render_png
from mpitrain.observe.metrics_file import read_metrics
from mpitrain.observe.report import render_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE_INCH = (6.4, 3.2)
_COLOUR = "#2563eb"
_MOST_LINES = 200
Rows = Sequence[Mapping[str, str]]


def write_ensemble_report(folder: Path, table: str, networks: Mapping[str, StoredNetwork]) -> Path:
    """Write `report.html` of the ensemble in `folder`. Raises UserError.

    `table` is the name of its CSV, `networks` are those that can be compared on held-out samples, by member.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("report.html needs matplotlib: python -m pip install matplotlib") from error
    try:
        with (folder / table).open() as file:
            rows = list(csv.DictReader(file))
        chosen = json.loads((folder / MEMBERS).read_text())["members"]
    except (OSError, ValueError, KeyError) as error:
        raise OutputError(f"{folder}: holds no ended ensemble ({error}); continue it with --resume") from error
    calibration = _calibration(folder, [row for row in rows if row["member"] in networks], networks)
    page = render_report(
        folder.resolve().name, _summary(rows, chosen, calibration), _plots(folder, rows, calibration),
        (folder / "config.yaml").read_text(),
    )  # fmt: skip
    path = folder / "report.html"
    try:
        write_durably(path, page.encode())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); free space") from error
    return path


def _calibration(folder: Path, rows: Rows, networks: Mapping[str, StoredNetwork]) -> Calibration | None:
    """Return spread against error on held-out samples; None where there is one member, or none held out."""
    try:
        found = held_out_values(folder, rows, networks)
    except DataError:  # the data is no longer there: the page does without
        return None
    return None if found is None else calibration_of(found.values, found.truth)


def _scores(rows: Rows) -> list[float]:
    losses = (row["validation_loss"] or row["train_loss"] for row in rows if row["status"] == "done")
    return [float(loss) for loss in losses]


def _summary(rows: Rows, chosen: Sequence[str], calibration: Calibration | None) -> dict[str, Any]:
    scores = _scores(rows)
    values: dict[str, Any] = {
        "members": len(rows),
        "members_in_model_pt": len(chosen),
        **{f"members_{status}": sum(row["status"] == status for row in rows) for status in _statuses(rows)},
    }
    if scores:
        values |= {"loss_mean": float(np.mean(scores)), "loss_best": min(scores), "loss_worst": max(scores)}
    if len(scores) > 1:
        values["loss_standard_deviation"] = float(np.std(scores, ddof=1))
    if calibration is not None:
        values |= {
            "held_out_samples_compared": calibration.num_samples,
            "error_of_the_mean": calibration.error,
            "error_foretold_by_the_spread": calibration.foretold,
            "foretold_over_error": calibration.ratio,
        }
    failures = [f"{row['member']}: {row['message']}" for row in rows if row["message"]]
    return values | ({"failures": "; ".join(failures[:5])} if failures else {})


def _statuses(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["status"] for row in rows))


def _plots(folder: Path, rows: Rows, calibration: Calibration | None) -> dict[str, str]:
    plots = {"Loss of each member": _losses(folder, rows)}
    for key in _varied(rows):
        plots[f"Loss against {key}"] = _against(key, rows)
    if calibration is not None:
        plots["Spread against error"] = _spread_against_error(calibration)
        plots["Rank of the truth among the members"] = _rank_histogram(calibration)
    return plots


def _varied(rows: Rows) -> list[str]:
    return [key for key in rows[0] if "." in key] if rows else []


def _losses(folder: Path, rows: Rows) -> str:
    from matplotlib.collections import LineCollection

    figure, axes = new_figure(*_SIZE_INCH)
    lines = []
    for row in rows[:_MOST_LINES]:
        path = folder / "members" / row["member"] / "metrics.jsonl"
        records = read_metrics(path) if path.exists() else []
        key = "validation_loss" if any(record.get("validation_loss") for record in records) else "train_loss"
        points = [(record["epoch"], record[key]) for record in records if record.get(key)]
        lines += [points] if points else []
    if lines:  # all at once: each by itself would take a millisecond
        axes.add_collection(LineCollection(lines, colors=_COLOUR, alpha=0.4, linewidths=1))
        axes.autoscale_view()
    axes.set(xlabel="epoch", ylabel="loss", yscale="log")
    return _image(figure)


def _against(key: str, rows: Rows) -> str:
    figure, axes = new_figure(*_SIZE_INCH)
    ended = [row for row in rows if row["validation_loss"] or row["train_loss"]]
    losses = [float(row["validation_loss"] or row["train_loss"]) for row in ended]
    values: list[Any] = [row[key] for row in ended]
    try:
        values = [float(value) for value in values]
        if values and min(values) > 0 and max(values) > 20 * min(values):
            axes.set_xscale("log")
    except ValueError:  # words
        pass
    axes.plot(values, losses, "o", color=_COLOUR, alpha=0.6)
    axes.set(xlabel=key, ylabel="loss", yscale="log")
    return _image(figure)


def _spread_against_error(calibration: Calibration) -> str:
    figure, axes = new_figure(*_SIZE_INCH)
    foretold, errors = zip(*calibration.bins, strict=True)
    axes.plot(foretold, errors, "o-", color=_COLOUR)
    largest = max(*foretold, *errors)
    axes.plot([0, largest], [0, largest], color=GUIDE_COLOUR, linestyle="--", linewidth=1.2, label="calibrated")
    axes.set(xlabel="error foretold by the spread", ylabel="error of the mean")
    axes.legend(frameon=False)
    return _image(figure)


def _rank_histogram(calibration: Calibration) -> str:
    figure, axes = new_figure(*_SIZE_INCH)
    counts = calibration.rank_counts
    # One outline: of many members, as many bars would take longer to draw than all else.
    axes.stairs(counts, np.arange(len(counts) + 1) - 0.5, fill=True, color=_COLOUR)
    axes.axhline(sum(counts) / len(counts), color=GUIDE_COLOUR, linestyle="--", linewidth=1.2, label="calibrated")
    axes.set(xlabel="members below the truth", ylabel="samples", ylim=(0, 1.25 * max(counts)))
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, loc="upper right")
    return _image(figure)


def _image(figure: Figure) -> str:
    content = base64.b64encode(render_png(figure)).decode()
    return f'<img alt="" style="max-width:100%" src="data:image/png;base64,{content}">'
