"""Kills of predict, export, an ensemble and a Python script; with --full 20 of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from killed_commands import campaign


def test_a_killed_command_leaves_no_half_file_and_goes_on(tmp_path: Path, tries: Callable[[int], int]) -> None:
    found = campaign(tmp_path, tries(20))
    assert {what: counts for what, counts in found.items() if counts != Counter({"": tries(20)})} == {}
