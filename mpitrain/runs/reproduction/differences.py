"""What differs between where a run was trained and here, in lines; numbers of ranks differ without consequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mpitrain.runs.reproduction.record import kinds

_FACTS = {
    "cpu": "CPU",
    "cpu_capability": "vector instructions that PyTorch uses",
    "mpi_library": "MPI library",
    "compiler": "compiler",
    "settings": "variables that choose instructions",
    "system": "system",
}
# These can change the bits; the others are named for completeness.
_DECIDING = ("torch", "numpy", "CPU", "vector instructions", "variables", "mpitrain", "git", "compiler")


def differences(then: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact of two records that is not the same: what decides bits first."""
    lines = [*_versions(then, here), *_machines(then, here), *_git(then, here)]
    return sorted(lines, key=lambda line: not line.startswith(_DECIDING))


def deciding(lines: list[str]) -> list[str]:
    """Return the lines of what can change bits."""
    return [line for line in lines if line.startswith(_DECIDING)]


def _versions(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*then["versions"], *here["versions"]}):
        before, now = then["versions"].get(name, ""), here["versions"].get(name, "")
        if before != now:
            yield f"{name} {before or '(none)'} then, {now or '(none)'} here"


def _machines(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for key, words in _FACTS.items():
        before, now = sorted(kinds(then, key)), sorted(kinds(here, key))
        if before != now:
            yield f"{words}: {' and '.join(before) or '(none)'} then, {' and '.join(now) or '(none)'} here"


def _git(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    before, now = then.get("git"), here.get("git")
    if before != now:
        yield f"git: {_state(before)} then, {_state(now)} here"


def _state(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return "no repository"
    changed = len(git["changed_files"])
    return str(git["commit"])[:12] + (f" with {changed} changed files" if changed else "")
