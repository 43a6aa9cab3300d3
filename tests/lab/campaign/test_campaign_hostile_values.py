"""Hostile settings, by number: taken as they are meant, or refused in one line; never a traceback."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hostile_values import EXPECTED, KEYS, outcome


def test_hostile_settings_are_taken_or_refused_in_one_line(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = range(10_000 if request.config.getoption("--full") else 150)
    said = {number: outcome(number, tmp_path) for number in numbers}
    with capsys.disabled():
        print(f"\nhostile settings: {dict(Counter(said.values()))}")
    assert {number: what for number, what in said.items() if what not in EXPECTED} == {}
    assert set(said.values()) == EXPECTED
    assert {"training.epochs", "ensemble.grid", "training.optimizer.learning_rate", "model"} <= set(KEYS)
