"""What `mpitrain verify --invariance` leaves behind: a table, JSON, and a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpitrain.verify.invariance.invariance import CheckOutcome, Invariance
from mpitrain.verify.report import html_page, html_table, versions, write_pair

_NO_REASON = "nothing in the settings explains it: a bug of this package or of a library, or a fault of a machine"


def render_table(invariance: Invariance) -> str:
    """Return the result as plain text: a line a check, what explains a difference below it, then the verdict."""
    outcomes = invariance.outcomes
    titles = max(len(outcome.check.title) for outcome in outcomes)
    ways = max(len(outcome.how) for outcome in outcomes)
    lines = [f"all compared with the run on {invariance.num_ranks} ranks, {invariance.num_steps} steps, bit for bit"]
    for outcome in outcomes:
        verdict = f"{outcome.verdict}: {outcome.detail}" if outcome.detail else outcome.verdict
        lines.append(f"{outcome.check.name}  {outcome.check.title:<{titles}}  {outcome.how:<{ways}}  {verdict}")
        lines += [f"     why: {reason}" for reason in _reasons(outcome)]
    lines.append(f"{'PASSED' if invariance.passed else 'FAILED'} in {invariance.wall_time_s:.0f} s")
    return "\n".join(lines)


def _reasons(outcome: CheckOutcome) -> tuple[str, ...]:
    if outcome.passed:
        return ()
    return outcome.reasons or ((_NO_REASON,) if outcome.verdict == "DIFFERS" else ())


def write_reports(invariance: Invariance, output: Path) -> tuple[Path, Path]:
    """Write `invariance.json` and `invariance.html` into `output`; return their paths. Raises OutputError."""
    return write_pair(output, "invariance", to_json(invariance), render_page(invariance))


def to_json(invariance: Invariance) -> dict[str, Any]:
    """Return the whole result as JSON values."""
    return {
        "passed": invariance.passed,
        "wall_time_s": invariance.wall_time_s,
        "versions": versions(),
        "ranks": invariance.num_ranks,
        "steps": invariance.num_steps,
        "checks": [
            {
                "check": outcome.check.name,
                "title": outcome.check.title,
                "how": outcome.how,
                "verdict": outcome.verdict,
                "passed": outcome.passed,
                "detail": outcome.detail,
                "reasons": list(_reasons(outcome)),
                "first_difference": None if outcome.difference is None else asdict(outcome.difference),
            }
            for outcome in invariance.outcomes
        ],
    }


def render_page(invariance: Invariance) -> str:
    """Return the report as one self-contained HTML page."""
    rows = [
        (
            outcome.check.name, outcome.check.title, outcome.how, outcome.verdict, outcome.detail,
            "; ".join(_reasons(outcome)),
        )
        for outcome in invariance.outcomes
    ]  # fmt: skip
    table = html_table(("check", "what is done", "how", "verdict", "first difference", "why"), rows)
    told = (
        f"{invariance.wall_time_s:.0f} s. Every number of the newest checkpoint and of the metrics is compared "
        f"with those of the run on {invariance.num_ranks} ranks ({invariance.num_steps} steps), bit for bit.</p>{table}"
    )
    cause = "data and settings alone" if invariance.passed else "how the run is started"
    verdict = f"The result depends on {cause}."
    return html_page("mpitrain verify --invariance", "Invariance", invariance.passed, verdict, told)
