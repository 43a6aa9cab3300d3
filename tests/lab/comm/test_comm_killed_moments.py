"""Ranks that are killed a moment after one another are all named."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from killed_ranks import NUM_RANKS, killed_in_mid_run, our_lines


@pytest.mark.mpi(ranks=NUM_RANKS)
def test_a_rank_that_ends_a_moment_after_those_that_its_launcher_ends_is_named_too(
    small_history: Path, tmp_path: Path
) -> None:
    # A launcher that sees the connections of a crashed rank close may be faster than the system, which ends the rank.
    for number in range(3):  # a busy machine may make more of the pause
        run = tmp_path / str(number) / "run"
        run.parent.mkdir()
        codes, said = killed_in_mid_run("by hand", run, small_history, [1, 2, 0], pause_s=0.1)
        (line,) = our_lines(said)
        named = re.findall(r"rank (\d) on \S+ \(process \d+\)", line)
        if codes == [-signal.SIGKILL] * NUM_RANKS and named == ["0", "1", "2"]:
            return
    assert (codes, named) == ([-signal.SIGKILL] * NUM_RANKS, ["0", "1", "2"])
