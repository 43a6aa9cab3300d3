"""Another user who knows the names of a launch's folders: ranks that fail are named and ended all the same."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
import start_faults
from conftest import TIMEOUT_S, find_mpirun, launcher_environment
from start_faults import Cell, expected_code, expected_words, run_cell

from mpitrain.comm.agent.folder import folder_name, launch_identity

NOBODY = 65534
ALWAYS = (Cell("SIGKILL", "settings", "by hand"), Cell("SIGSTOP", "meeting", "by hand"))
NUM_NAMES = 8


def as_nobody(base: Path, names: list[str]) -> None:
    """Make folders of these names as another user: writable for all, with notes that say that all is over."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(NOBODY)
            for name in names:
                (base / name).mkdir()
                (base / name).chmod(0o777)
                for rank in (0, 1):
                    note = {"rank": rank, "pid": 1, "born": "1", "host": "x", "state": "failed", "told_s": 0.0}
                    (base / name / f"rank-{rank:06d}.json").write_text(json.dumps(note))
                for mark in ("spoken", "said", "agent"):
                    (base / name / mark).touch()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for all users, as /tmp is, of one meeting point that the other user has guessed."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:  # pytest's own, one level more where it runs on several processes
            folder.chmod(0o755)
    port = start_faults.free_port()
    monkeypatch.setattr(start_faults, "free_port", lambda: port)
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o1777)
    return base


def names_of_launch() -> list[str]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(start_faults.free_port()), "RANK": "0"}
    name = folder_name(launch_identity(meeting), "start", socket.gethostname())
    return [name, *(f"{name}-{number}" for number in range(2, NUM_NAMES + 1))]


@pytest.mark.slow
def test_faults_beside_another_user(
    small_history: Path, tmp_path: Path, base: Path, request: pytest.FixtureRequest
) -> None:
    as_nobody(base, names_of_launch()[:3])
    every = start_faults.cells(("by hand",))
    for number, cell in enumerate(every if request.config.getoption("--full") else ALWAYS):
        words = ["train", f"data.data_path={small_history}", f"output.model_dir={tmp_path / str(number)}"]
        environ = {**launcher_environment(), "TMPDIR": str(base)}
        ended = run_cell(cell, words, environ, sys.executable, find_mpirun(), 30.0)
        (line,) = ended.our_lines
        assert re.search(expected_words(cell), line), cell
        assert ended.codes[0] == expected_code(cell, ended.codes[1]), cell


def test_where_nobody_can_watch_a_line_says_so(small_history: Path, tmp_path: Path, base: Path) -> None:
    as_nobody(base, names_of_launch())
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(start_faults.free_port()), "WORLD_SIZE": "2"}
    words = ["-m", "mpitrain", "train", f"data.data_path={small_history}", f"output.model_dir={tmp_path / 'run'}",
             "training.epochs=1"]  # fmt: skip
    running = [
        start_faults._start(
            [sys.executable, *words], {**launcher_environment(), **meeting, "RANK": str(rank), "TMPDIR": str(base)}
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=TIMEOUT_S)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    (line,) = [line for line in said[0].splitlines() if "TMPDIR" in line]
    assert "ranks that exit or hang are not reported" in line
    assert "set TMPDIR to a folder that only you can write to" in line
