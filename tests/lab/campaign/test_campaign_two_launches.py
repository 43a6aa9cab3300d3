"""Two launches in one folder, in planned turns: one succeeds, the other is refused, and all files are of one run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import two_launches
from conftest import launch

NUM_INTERLEAVINGS = 200


def played(folder: Path, first: int, count: int, timeout_s: float) -> dict[str, int]:
    """Play interleavings in a process of their own; return how often each kind ended how."""
    words = [two_launches.__file__, str(folder), str(first), str(count)]
    done = launch(words, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    lines = (re.fullmatch(r" *(\d+) (.*)", line) for line in done.stdout.splitlines())
    return {match[2]: int(match[1]) for match in lines if match}


def test_one_interleaving_of_each_kind(tmp_path: Path) -> None:
    ended = played(tmp_path, 0, len(two_launches.KINDS), 300)
    assert sum(ended.values()) == len(two_launches.KINDS)
    assert ended["plain: 0 and 2"] == ended["ensemble: 0 and 2"] == 1


@pytest.mark.slow
def test_200_interleavings(tmp_path: Path) -> None:
    ended = played(tmp_path, 0, NUM_INTERLEAVINGS, 3600)
    assert sum(ended.values()) == NUM_INTERLEAVINGS
    assert ended.get("killed: -9 and 0", 0) > 0, "nobody has followed a launch that was killed"
    print(ended)
