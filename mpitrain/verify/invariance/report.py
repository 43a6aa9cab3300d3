"""The results of `mpitrain verify --invariance` as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mpitrain.cluster import package_versions
from mpitrain.verify.invariance.invariance import CheckOutcome, Invariance

_NO_REASON = "nothing in the settings explains it: a bug of this package or of a library, or a fault of a machine"


def render_table(invariance: Invariance) -> str:
    """Return the result as plain text: one line per check, reasons for a difference below it, then the verdict."""
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


def to_json(invariance: Invariance) -> dict[str, Any]:
    """Return the whole result as JSON values."""
    return {
        "passed": invariance.passed,
        "wall_time_s": invariance.wall_time_s,
        "versions": package_versions(),
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
