"""What one check found, and the exit code that many results add up to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "warn", "fail", "skip"]

# A failure of these is the user's input; of any other, the installation, the launch or the network.
INPUT_CHECKS = ("config", "data file", "data seen by all ranks", "HDF5 locking", "run folder", "disk space")


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's table: what was looked at, how it stands, what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    fix: str = ""


def exit_code_of(results: Iterable[CheckResult]) -> int:
    """0 without a failure; 3 if the installation, the launch or the network failed; 2 if only the user's input did."""
    failed = [result.name for result in results if result.status == "fail"]
    if not failed:
        return 0
    return 2 if all(name in INPUT_CHECKS for name in failed) else 3


def to_record(result: CheckResult) -> dict[str, Any]:
    """Return the result as a plain mapping, for JSON."""
    return dataclasses.asdict(result)


def from_record(record: Mapping[str, Any]) -> CheckResult:
    """Return the result that `to_record` wrote."""
    return CheckResult(record["name"], record["status"], record["found"], record["fix"])
