"""The report of an ensemble: losses of its members, loss against settings, spread against error.

M  members      N  samples
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.durable_files import write_durably
from mpitrain.ensemble.calibration import Calibration
from mpitrain.ensemble.held_out import HeldOut
from mpitrain.ensemble.outcome import SKILL
from mpitrain.errors import writing
from mpitrain.observe import draw_pairs, read_metrics, render_png
from mpitrain.observe.figures import GUIDE_COLOUR, image_of, new_figure, require_matplotlib
from mpitrain.observe.page.skill import render_skill
from mpitrain.observe.report import render_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE_INCH = (6.4, 3.2)
_COLOUR = "#2563eb"
_MOST_LINES = 200
_MOST_PARTS = 60
Rows = Sequence[Mapping[str, str]]


def draw_members(folder: Path, rows: Rows) -> dict[str, str]:
    """Return plots of the losses of the members in `rows` of the table, as HTML by title.

    Raises MissingDependencyError without matplotlib.
    """
    require_matplotlib("report.html")
    settings = [key for key in rows[0] if "." in key] if rows else []
    return {
        "Loss of each member": _losses(folder, rows),
        **{f"Loss against {key}": _against(key, rows) for key in settings},
    }


def write_ensemble_report(
    folder: Path, rows: Rows, num_chosen: int, pictures: Mapping[str, str], held_out: HeldOut | None,
    sentences: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write `report.html` of the ensemble in `folder`, with the plots of `draw_members`. Raises UserError.

    `rows` are those of the table; `num_chosen` members are in the ensemble's `model.pt`. `held_out` is their skill on
    held-out samples, None if it is not known; `sentences` describe what was trained.
    """
    calibration = None if held_out is None else held_out.calibration
    page = render_report(
        folder.resolve().name,
        _summary(rows, num_chosen, calibration),
        pictures if held_out is None else {**_on_held_out(held_out), **pictures, **_of_calibration(calibration)},
        (folder / "config.yaml").read_text(),
        description="".join(f"<p>{escape(one)}</p>" for one in sentences),
    )
    path = folder / "report.html"
    with writing(path, "free space"):
        write_durably(path, page.encode())
    return path


def _on_held_out(found: HeldOut) -> dict[str, str]:
    maps = {title: image_of(picture, title) for title, picture in found.maps.items()}
    drawn = draw_pairs(found.pairs, found.course, [one.label for one in found.skills])
    skill = {"Skill": render_skill(found.skills, f"The mean of the members {found.of_samples}.")}
    return {**drawn, **skill, **_by_part(found), **maps}


def _by_part(found: HeldOut) -> dict[str, str]:
    """Return the skill on each fold, time and group, as HTML by title."""
    shown = {}
    for kind in ("fold", "time", "group"):
        parts = [part for part in found.parts if part.kind == kind]
        rows = [(part.name, one) for part in parts[:_MOST_PARTS] for one in part.skills]
        more = (
            f", the first {_MOST_PARTS} of {len(parts)}: the others are in {SKILL}" if len(parts) > _MOST_PARTS else ""
        )
        if rows:
            names, skills = zip(*rows, strict=True)
            shown[f"Skill by {kind}"] = render_skill(skills, f"By {kind}{more}.", kind, names)
    return shown


def _of_calibration(calibration: Calibration | None) -> dict[str, str]:
    if calibration is None:
        return {}
    return {
        "Spread against error": _spread_against_error(calibration),
        "Rank of the truth among the members": _rank_histogram(calibration),
    }


def _summary(rows: Rows, num_chosen: int, calibration: Calibration | None) -> dict[str, Any]:
    scores = [float(_loss_of(row)) for row in rows if row["status"] == "done"]
    values: dict[str, Any] = {
        "members": len(rows),
        "members_in_model_pt": num_chosen,
        **{f"members_{status}": count for status, count in Counter(row["status"] for row in rows).items()},
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


def _loss_of(row: Mapping[str, str]) -> str:
    return row["validation_loss"] or row["train_loss"]


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
    if lines:  # as one collection: single lines would take a millisecond each
        axes.add_collection(LineCollection(lines, colors=_COLOUR, alpha=0.4, linewidths=1))
        axes.autoscale_view()
    axes.set(xlabel="epoch", ylabel="loss", yscale="log")
    return _image(figure)


def _against(key: str, rows: Rows) -> str:
    figure, axes = new_figure(*_SIZE_INCH)
    ended = [row for row in rows if _loss_of(row)]
    losses = [float(_loss_of(row)) for row in ended]
    values: list[Any] = [row[key] for row in ended]
    try:
        values = [float(value) for value in values]
        if values and min(values) > 0 and max(values) > 20 * min(values):
            axes.set_xscale("log")
    except ValueError:  # the values are text
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
    # One outline: with many members, one bar each would take longer to draw than the rest of the page.
    axes.stairs(counts, np.arange(len(counts) + 1) - 0.5, fill=True, color=_COLOUR)
    axes.axhline(sum(counts) / len(counts), color=GUIDE_COLOUR, linestyle="--", linewidth=1.2, label="calibrated")
    axes.set(xlabel="members below the truth", ylabel="samples", ylim=(0, 1.25 * max(counts)))
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, loc="upper right")
    return _image(figure)


def _image(figure: Figure) -> str:
    return image_of(render_png(figure))
