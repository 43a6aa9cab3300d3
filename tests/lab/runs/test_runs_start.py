"""What a rank asks of the file system until its run has ended, and what the log says of the start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, Finished, find_mpirun, launch, launcher_environment

from mpitrain.runs.run_log import describe_start

# Of a rank that draws nothing, with the pinned packages: 1,830 files, 30,000 questions about paths.
MOST_FILES, MOST_QUESTIONS = 1950, 36_000
# Of a rank that is forked, with the process that stands in for it: 440 files, 5,700 questions.
MOST_FILES_FORKED, MOST_QUESTIONS_FORKED = 500, 7_000
_CALLS = "openat,newfstatat,stat,lstat,statx,readlink,access,getdents64"
TRACED = f"""
exec strace -f -qq -e trace={_CALLS} -o calls-$PMI_RANK \\
    "$0" -m mpitrain "$@"
"""


def files_of_environment(trace: str) -> set[str]:
    """The files of Python and its packages that were opened."""
    opened = re.findall(r'openat\([^"]*"([^"]+)"(?!.* = -1 )', trace)
    places = (sys.prefix, sys.base_prefix, str(PROJECT / "mpitrain"))
    return {path for path in opened if path.startswith(places)}


@pytest.mark.mpi(ranks=3)
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_rank_asks_the_file_system_no_more_than_the_readme_says(
    tmp_path: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(small_history), "--epochs", "1", "--output", "run"]
    done = launch_traced(words, tmp_path)
    assert done.returncode == 0, done.stderr
    trace = (tmp_path / "calls-1").read_text()
    files, questions = files_of_environment(trace), len(re.findall(r"^\d+ +\w+\(", trace, flags=re.MULTILINE))
    with capsys.disabled():
        print(f"\na rank opens {len(files)} files of its environment and asks {questions} times about paths")
    assert 500 < len(files) <= MOST_FILES
    assert questions <= MOST_QUESTIONS


@pytest.mark.mpi(ranks=3)
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_forked_rank_asks_the_file_system_no_more_than_the_readme_says(
    tmp_path: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sys.executable, "-m", "mpitrain", "--data", str(small_history), "--epochs", "1", "--output", "run"]
    command = ["strace", "-ff", "-qq", "-e", f"trace={_CALLS}", "-o", "calls", find_mpirun(), "-np", "3", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=launcher_environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    fork = re.findall(r"rank 1 of 3, process (\d+)", (tmp_path / "run" / "logs" / "rank-0001.log").read_text())[0]
    traces = {path.suffix[1:]: path.read_text(errors="replace") for path in tmp_path.glob("calls.*")}
    files = {pid: len(files_of_environment(trace)) for pid, trace in traces.items()}
    questions = {pid: len(re.findall(r"^\w+\(", trace, flags=re.MULTILINE)) for pid, trace in traces.items()}
    server = max(files, key=files.__getitem__)
    stand_in = max((pid for pid, trace in traces.items() if "fork-server.lock" in trace), key=files.__getitem__)
    of_rank = files[fork] + files[stand_in], questions[fork] + questions[stand_in]
    with capsys.disabled():
        print(
            f"\na forked rank opens {of_rank[0]} files and asks {of_rank[1]} times; its node's process {files[server]}"
        )
    assert fork != server
    assert 100 < of_rank[0] <= MOST_FILES_FORKED
    assert of_rank[1] <= MOST_QUESTIONS_FORKED
    assert 500 < files[server] <= MOST_FILES


def launch_traced(words: list[str], cwd: Path) -> Finished:
    script = cwd / "traced.py"
    script.write_text(f"import os, sys\nos.execvp('bash', ['bash', '-c', {TRACED!r}, sys.executable, *sys.argv[1:]])\n")
    return launch([str(script), *words], 3, cwd=cwd)


def test_the_slowest_rank_of_each_part_is_named() -> None:
    lines = describe_start(
        [
            [("loading", 1.0), ("reading", 0.5)],
            [("loading", 3.0), ("reading", 0.1), ("reading", 0.1)],
            [("loading", 2.0)],
        ]
    )
    assert lines == ["loading: 2.000 s, slowest rank 1 3.000 s", "reading: 0.350 s, slowest rank 0 0.500 s"]
