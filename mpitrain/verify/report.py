"""The results of `mpitrain verify` as a table and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpitrain.cluster import package_versions
from mpitrain.durable_files import write_durably
from mpitrain.errors import writing
from mpitrain.verify.compare import TABLES
from mpitrain.verify.verify import CaseResult, Verification


def render_table(verification: Verification) -> str:
    """Return the result as plain text: one line per case and number of ranks, then the verdict."""
    width = max((len(result.case.name) for result in verification.cases), default=10)
    lines = [f"{'case':<{width}}  ranks  claim          largest     ulp  Python us  C++ us  verdict"]
    lines += [_case_line(result, width) for result in verification.cases]
    lines += [f"machine: {seen}" for seen in verification.machines]
    lines.append(f"{'PASSED' if verification.passed else 'FAILED'} in {verification.wall_time_s:.0f} s")
    return "\n".join(lines)


def _case_line(result: CaseResult, width: int) -> str:
    results, first = result.comparison.results, result.comparison.first_difference
    largest = max((entry.largest for entry in results), default=math.nan)
    ulps = max((entry.largest_ulps for entry in results), default=0)
    verdict = "same" if first is None else f"DIFFERS: {first}"
    return (
        f"{result.case.name:<{width}}  {result.num_ranks:>5}  {result.case.claim:<13}  {largest:<8.1e}  {ulps:>6}  "
        f"{result.python_us_per_step:>9.0f}  {result.cpp_us_per_step:>6.0f}  {verdict}"
    )


def write_json(values: dict[str, Any], path: Path) -> Path:
    """Write the values of a verification to `path` as JSON; return `path`. Raises OutputError."""
    with writing(path.parent, "choose another --output"):
        write_durably(path, json.dumps(values, indent=1).encode())
    return path


def to_json(verification: Verification) -> dict[str, Any]:
    """Return the whole result as JSON values."""
    return {
        "passed": verification.passed,
        "wall_time_s": verification.wall_time_s,
        "versions": package_versions(),
        "machines": [asdict(seen) for seen in verification.machines],
        "cases": [_case_to_json(result) for result in verification.cases],
        "tolerances": {claim: [asdict(entry) for entry in table] for claim, table in TABLES.items()},
    }


def _case_to_json(result: CaseResult) -> dict[str, Any]:
    first = result.comparison.first_difference
    return {
        "case": result.case.name,
        "ranks": result.num_ranks,
        "claim": result.case.claim,
        "passed": result.comparison.passed,
        "first_difference": None if first is None else str(first),
        "machines": [asdict(seen) for seen in result.machines],
        "python_us_per_step": result.python_us_per_step,
        "cpp_us_per_step": result.cpp_us_per_step,
        "variables": {
            entry.name: {
                "largest": entry.largest if math.isfinite(entry.largest) else None,  # JSON has neither NaN nor infinity
                "ulps": entry.largest_ulps,
                "different": entry.num_different,
                "note": entry.note,
            }
            for entry in result.comparison.results
        },
    }
