"""Files with random damage, by number: one line each, no traceback, and the run's own process never dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from damaged_files import EXPECTED, KINDS, try_files


def test_damaged_files_are_refused_or_read(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = range(10_000 if request.config.getoption("--full") else 180)
    said = dict(try_files(tmp_path, numbers))
    table = Counter((KINDS[number % len(KINDS)], what) for number, what in said.items())
    with capsys.disabled():
        print("\n" + "\n".join(f"{kind:12} {what:28} {times:6}" for (kind, what), times in sorted(table.items())))
    assert {number: what for number, what in said.items() if what not in EXPECTED} == {}
    assert len(said) == len(numbers)
    assert {what for _, what in table} >= {"refused", "read"}, "else the damage is none, or nothing is left"
