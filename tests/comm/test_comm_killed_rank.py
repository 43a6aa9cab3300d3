"""A rank that is killed in mid-run is named, in one line of ours, by every launcher; the others end with code 3."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest
from killed_ranks import NUM_RANKS, killed_in_mid_run, our_lines

KILLED = 1
LAUNCHERS = ("by hand", "mpirun", "torchrun")


@pytest.mark.mpi(ranks=NUM_RANKS)
@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_is_named(
    small_history: Path, tmp_path: Path, launcher: str, request: pytest.FixtureRequest
) -> None:
    if launcher == "torchrun" and not request.config.getoption("--full"):
        pytest.skip("as by hand, with torchrun's own words after ours; --full")
    run = tmp_path / "run"
    codes, said = killed_in_mid_run(launcher, run, small_history, [KILLED])
    (line,) = our_lines(said)
    named = re.search(rf"rank {KILLED} on {socket.gethostname()} \(process \d+\)", line)
    assert named, line
    assert "ended without a word" in line
    assert "Traceback" not in said
    assert "gloo" not in said
    expected = {"by hand": [3, -signal.SIGKILL, 3], "torchrun": [1]}
    assert codes == expected[launcher] if launcher in expected else codes[0] != 0
    assert (run / "logs" / "failure.txt").read_text().startswith("mpitrain: error: ")
