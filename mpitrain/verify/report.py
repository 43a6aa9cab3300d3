"""What `mpitrain verify` leaves behind: a table, JSON, and a page with plots."""

from __future__ import annotations

import html
import io
import json
import math
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.durable_files import write_durably
from mpitrain.errors import writing
from mpitrain.observe.figures import new_figure
from mpitrain.verify.tolerances import TABLES
from mpitrain.verify.verify import CaseResult, FaultResult, Verification

_PLOT_WIDTH_INCH = 8.0
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .9rem; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee5; }
.pass { color: #0a6b3d; }
.fail { color: #b3261e; font-weight: 600; }
svg { max-width: 100%; height: auto; }
"""


def render_table(verification: Verification) -> str:
    """Return the result as plain text: one line a case and number of ranks, then the faults, then the verdict."""
    width = max((len(result.case.name) for result in verification.cases), default=10)
    lines = [f"{'case':<{width}}  ranks  claim          largest     ulp  Python us  C++ us  verdict"]
    lines += [_case_line(result, width) for result in verification.cases]
    if verification.faults:
        caught = sum(result.caught for result in verification.faults)
        lines.append(f"planted faults: {caught} of {len(verification.faults)} caught at the right stage")
    lines += [f"machine: {seen}" for seen in verification.machines]
    if verification.emulator:
        lines.append(f"every rank was started by: {verification.emulator}")
    lines.append(f"{'PASSED' if verification.passed else 'FAILED'} in {verification.wall_time_s:.0f} s")
    return "\n".join(lines)


def _case_line(result: CaseResult, width: int) -> str:
    largest, ulps = _worst(result)
    first = result.comparison.first_difference
    verdict = "same" if first is None else f"DIFFERS: {first}"
    return (
        f"{result.case.name:<{width}}  {result.num_ranks:>5}  {result.case.claim:<13}  {largest:<8.1e}  {ulps:>6}  "
        f"{result.python_us_per_step:>9.0f}  {result.cpp_us_per_step:>6.0f}  {verdict}"
    )


def _worst(result: CaseResult) -> tuple[float, int]:
    results = result.comparison.results
    largest = max((entry.largest for entry in results), default=math.nan)
    return largest, max((entry.largest_ulps for entry in results), default=0)


def write_reports(verification: Verification, output: Path) -> tuple[Path, Path]:
    """Write `verify.json` and `verify.html` into `output`; return their paths. Raises OutputError."""
    return write_pair(output, "verify", to_json(verification), render_page(verification))


def write_pair(output: Path, stem: str, values: dict[str, Any], page: str) -> tuple[Path, Path]:
    """Write STEM.json and STEM.html into `output`; return their paths. Raises OutputError."""
    as_json, as_html = output / f"{stem}.json", output / f"{stem}.html"
    with writing(output, "choose another --output"):
        write_durably(as_json, json.dumps(values, indent=1).encode())
        write_durably(as_html, page.encode())
    return as_json, as_html


def to_json(verification: Verification) -> dict[str, Any]:
    """Return the whole result as JSON values."""
    return {
        "passed": verification.passed,
        "wall_time_s": verification.wall_time_s,
        "versions": versions(),
        "emulator": verification.emulator or None,
        "machines": [asdict(seen) for seen in verification.machines],
        "cases": [_case_to_json(result) for result in verification.cases],
        "faults": [_fault_to_json(result) for result in verification.faults],
    }


def versions() -> dict[str, str]:
    """Return the versions that bits may depend on."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "mpi4py", "numpy")},
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
                "largest": _finite(entry.largest),
                "ulps": entry.largest_ulps,
                "different": entry.num_different,
                "note": entry.note,
            }
            for entry in result.comparison.results
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has neither NaN nor infinity


def _fault_to_json(result: FaultResult) -> dict[str, Any]:
    return {
        "fault": result.fault.name,
        "expected_stage": result.fault.stage,
        "caught": result.caught,
        "first_difference": result.message,
    }


def render_page(verification: Verification) -> str:
    """Return the report as one self-contained HTML page."""
    told = (
        f"{verification.wall_time_s:.0f} s</p><h2>Machines</h2>{_machine_table(verification)}"
        f"<h2>Cases</h2>{_case_table(verification)}<h2>Difference against step</h2>{_plot_differences(verification)}"
        f"<h2>Time a step</h2>{_plot_times(verification)}"
        f"<h2>Tolerances</h2>{_tolerance_table()}{_fault_table(verification)}"
    )
    verdict = "All claims hold." if verification.passed else "At least one claim does not hold."
    return html_page("mpitrain verify", "Python against C++", verification.passed, verdict, told)


def html_page(title: str, heading: str, passed: bool, verdict: str, told: str) -> str:
    """Return a page that stands alone; `told` goes on in the paragraph of the versions."""
    known = ", ".join(f"{name} {value}" for name, value in versions().items())
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style><h1>{heading}</h1>"
        f"<p class='{'pass' if passed else 'fail'}'>{verdict}</p>"
        f"<p>{html.escape(known)}; {told}</html>"
    )


def _machine_table(verification: Verification) -> str:
    rows = [
        (seen.program, ", ".join(map(str, seen.ranks)), seen.cpu, seen.torch, seen.mpi_library, seen.vendor_settings)
        for seen in verification.machines
    ]
    table = html_table(
        ("program", "ranks", "CPU", "torch (its instruction sets)", "MPI library", "vendors' settings"), rows
    )
    emulated = f"<p>Every rank was started by: {html.escape(verification.emulator)}</p>"
    return table + (emulated if verification.emulator else "")


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in HTML, everything in it escaped."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _case_table(verification: Verification) -> str:
    rows = []
    for result in verification.cases:
        largest, ulps = _worst(result)
        first = result.comparison.first_difference
        times = f"{result.python_us_per_step:.0f}", f"{result.cpp_us_per_step:.0f}"
        rows.append(
            (result.case.name, result.num_ranks, result.case.claim, f"{largest:.1e}", ulps, *times, first or "same")
        )
    return html_table(
        ("case", "ranks", "claim", "largest difference", "ulp", "Python us a step", "C++ us a step", "verdict"), rows
    )


def _tolerance_table() -> str:
    rows = [
        (claim, entry.pattern, "same bits" if entry.relative is None else entry.relative, entry.reason)
        for claim, table in TABLES.items()
        for entry in table
    ]
    return html_table(("claim", "variables", "relative tolerance", "reason"), rows)


def _fault_table(verification: Verification) -> str:
    if not verification.faults:
        return ""
    rows = [
        (result.fault.name, result.fault.stage, "caught" if result.caught else "NOT CAUGHT", result.message)
        for result in verification.faults
    ]
    return "<h2>Planted faults</h2>" + html_table(("fault", "stage", "verdict", "first difference"), rows)


def _plot_differences(verification: Verification) -> str:
    figure, axes = new_figure(_PLOT_WIDTH_INCH, 4.0)
    for result in verification.cases:
        steps = _weight_differences(result)
        if any(steps.values()):
            label = f"{result.case.name}, {result.num_ranks} ranks"
            axes.loglog(list(steps), list(steps.values()), marker="o", label=label)
    axes.set(xlabel="step", ylabel="largest relative difference of a weight", title="cases that are not exactly 0")
    if axes.lines:
        axes.legend(fontsize=6)
    return _svg(figure)


def _weight_differences(result: CaseResult) -> dict[int, float]:
    """Return the largest relative difference of any weight at each traced step."""
    steps: dict[int, float] = {}
    for entry in result.comparison.results:
        found = re.match(r"weights_step(\d+)", entry.name)
        if found:
            steps[int(found[1])] = max(steps.get(int(found[1]), 0.0), entry.largest)
    return steps


def _plot_times(verification: Verification) -> str:
    figure, axes = new_figure(_PLOT_WIDTH_INCH, max(3.0, 0.22 * len(verification.cases)))
    labels = [f"{result.case.name}, {result.num_ranks}" for result in verification.cases]
    positions = np.arange(len(labels))
    for offset, program, times in (
        (-0.2, "Python", [result.python_us_per_step for result in verification.cases]),
        (0.2, "C++", [result.cpp_us_per_step for result in verification.cases]),
    ):
        axes.barh(positions + offset, times, 0.4, label=program)
    axes.set_yticks(positions, labels, fontsize=6)
    axes.set(xlabel="us a step (median)", xscale="log")
    axes.legend()
    return _svg(figure)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
