"""Runs the cells of the table of start_faults.py; in what they ended otherwise than they must."""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from pathlib import Path

from conftest import TIMEOUT_S, find_mpirun, launcher_environment
from start_faults import (
    Cell,
    Ended,
    expected_words,
    is_named_by_launcher,
    run_cell,
)

START_LIMIT_S = 30.0


def processes_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes() and b") Z " not in (path / "stat").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def problems_of(cell: Cell, history: Path, folder: Path, python: str) -> list[str]:
    """Run a cell; return everything in which it ended otherwise than it must."""
    mark = uuid.uuid4().hex
    arguments = ["train", f"data.data_path={history}", f"output.model_dir={folder / mark}", "training.epochs=1"]
    environ = {**launcher_environment(), "MARK_OF_TEST": mark}
    try:
        ended = run_cell(cell, arguments, environ, python, find_mpirun(python), START_LIMIT_S)
    except subprocess.TimeoutExpired:
        return ["did not end"]
    return [*problems_of_output(cell, ended), *problems_of_processes(mark)]


def problems_of_output(cell: Cell, ended: Ended) -> list[str]:
    problems = []
    if not is_named_by_launcher(cell) and not (
        len(ended.our_lines) == 1 and re.search(expected_words(cell), ended.our_lines[0])
    ):
        problems.append(f"said {ended.our_lines or ended.stderr[-2000:]}, not {expected_words(cell)}")
    if "by hand" in cell.launcher and ended.codes[0] != (1 if ended.codes[1] == 1 and cell.phase == "settings" else 3):
        problems.append(f"exit codes {ended.codes}")
    return problems + (["ended well"] if ended.codes[0] == 0 else [])


def problems_of_processes(mark: str) -> list[str]:
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := processes_with(mark):
        if time.monotonic() > deadline_s:
            return [f"left behind: {[Path(f'/proc/{pid}/cmdline').read_bytes()[-90:] for pid in left]}"]
        time.sleep(0.05)
    return []
