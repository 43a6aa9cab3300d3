"""Result of one check, and the exit code, table or JSON of many results."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mpitrain.errors import one_line

Status = Literal["pass", "warn", "fail", "skip"]

# Failures of these checks lie in the user's input; of all others in the installation, the launch or the network.
INPUT_CHECKS = ("config", "data file", "data seen by all ranks", "HDF5 locking", "run folder", "disk space")

_WIDTH = 118
_SIGNS = {"pass": "ok", "warn": "WARN", "fail": "FAIL", "skip": "-"}


@dataclass(frozen=True)
class CheckResult:
    """One row of the doctor's table: name of the check, status, finding, and advice on a failure or warning."""

    name: str
    status: Status
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        """Reduce results of input checks, which contain the user's texts, to one line; others may have several."""
        if self.name in INPUT_CHECKS:
            object.__setattr__(self, "found", one_line(self.found))
            object.__setattr__(self, "fix", one_line(self.fix))


def exit_code_of(results: Iterable[CheckResult]) -> int:
    """Return 0 without a failure, 2 if only checks of the user's input failed, and 3 if any other check failed."""
    failed = [result.name for result in results if result.status == "fail"]
    if not failed:
        return 0
    return 2 if all(name in INPUT_CHECKS for name in failed) else 3


def render(results: Sequence[CheckResult], num_ranks: int | None, as_json: bool) -> str:
    """Return the results as a table or JSON that ends with a newline; `num_ranks` is None without a launcher."""
    if as_json:
        rows = [dataclasses.asdict(result) for result in results]
        record = {"num_ranks": num_ranks, "exit_code": exit_code_of(results), "results": rows}
        return json.dumps(record, indent=2) + "\n"
    scope = "one process, static checks" if num_ranks is None else f"{num_ranks} rank(s)"
    width = max((len(result.name) for result in results), default=0)
    lines = [f"mpitrain doctor: {scope}"]
    for result in results:
        lines += _rows(result, width)
    return "\n".join([*lines, _summary(results)]) + "\n"


def _rows(result: CheckResult, width: int) -> list[str]:
    start = f"{_SIGNS[result.status]:<4}  {result.name:<{width}}  "
    rows = _wrapped(start, result.found)
    if result.fix and result.status in ("warn", "fail"):
        rows += _wrapped(" " * len(start) + "-> ", result.fix)
    return rows


def _wrapped(start: str, text: str) -> list[str]:
    # Tables of launchers' variables contain line ends; commands must not be broken, so that they can be copied.
    rows: list[str] = []
    for line in text.split("\n"):
        rows += textwrap.wrap(one_line(line), _WIDTH - len(start), break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
    return [start + rows[0], *(" " * len(start) + row for row in rows[1:])]


def _summary(results: Sequence[CheckResult]) -> str:
    counts = {status: sum(result.status == status for result in results) for status in ("fail", "warn")}
    if counts["fail"] == 0 and counts["warn"] == 0:
        return f"No failure, no warning in {len(results)} checks."
    return f"{counts['fail']} failure(s), {counts['warn']} warning(s), {len(results)} checks."
