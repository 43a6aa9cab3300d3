"""Kills at the system calls of a save, and at random instants of runs that are resumed: nothing is lost, one hash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launcher_environment

HERE = Path(__file__).parent


def run_campaign(program: str, *words: object, environ: dict[str, str] | None = None) -> str:
    """Run a campaign in a process that has started nothing of MPI, and whose forks are its own."""
    command = [sys.executable, str(HERE / program), *map(str, words)]
    done = subprocess.run(
        command, env={**launcher_environment(), **(environ or {})}, capture_output=True, text=True, timeout=7200,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
def test_a_save_killed_at_any_system_call_leaves_the_old_or_the_new(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run_campaign("killed_saves.py", tmp_path / "saves", 1 if request.config.getoption("--full") else 4)
    with capsys.disabled():
        print("\n" + said)
    assert said.count("killed at") >= 6


def test_runs_killed_at_random_instants_and_resumed_have_one_hash(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 1000 if request.config.getoption("--full") else 2
    said = run_campaign("killed_runs.py", tmp_path / "runs", 0, count, "--at-once", 2)
    with capsys.disabled():
        print("\n" + said)
    assert said.startswith(f"{count} runs, ")
    assert int(said.split()[2]) > 0, "nothing was killed"
    assert f"{count} have the hash" in said
