"""Hostile archives given to the public commands, as data, weights, model, in a run folder and as a checkpoint.

Nothing runs, nothing is written, one line says what is wrong, exit code 2.
"""

from __future__ import annotations

from pathlib import Path

from conftest import launch
from hostile_archives import HOSTILE, Place
from hostile_uses import command


def test_a_model_of_another_program_runs_on_trust_only(tmp_path: Path, small_history: Path) -> None:
    place = Place(tmp_path / "x.pt", tmp_path / "trace")
    HOSTILE["forward writes"](place)
    given = ["-m", "mpitrain", *command("model", place.path, tmp_path, small_history)]
    done = launch(given, cwd=tmp_path)
    assert done.returncode == 2
    assert done.our_lines == [
        f"mpitrain: error: {place.path}: holds a network as code of its own, which would be run; give --trust-code if "
        "you trust its source"
    ]
    assert not place.trace.exists()
    done = launch([*given, "--trust-code"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert place.trace.exists(), "else the archive is not hostile, and the tests above say nothing"
