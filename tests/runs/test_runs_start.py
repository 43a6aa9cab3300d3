"""What a rank asks of the file system until its run has ended, and what the log says of the start."""

from __future__ import annotations

import compileall
import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, Finished, launch

from mpitrain.errors import installed_version
from mpitrain.runs.run_log import describe_start

# Of a rank that neither draws nor writes the model, with the pinned packages: 816 files, 3,550 questions about paths.
MOST_FILES, MOST_QUESTIONS = 860, 4_000
_PLACES = (sys.prefix, sys.base_prefix, str(PROJECT / "mpitrain"))
_CALLS = "openat,newfstatat,stat,lstat,statx,readlink,access,getdents64"
TRACED = f"""
exec strace -f -qq -e trace={_CALLS} -o calls-$PMI_RANK \\
    "$0" -m mpitrain "$@"
"""


def files_of_environment(trace: str) -> set[str]:
    """The files of Python and its packages that were opened."""
    return {path for path in re.findall(r'openat\([^"]*"([^"]+)"(?!.* = -1 )', trace) if path.startswith(_PLACES)}


def questions_about_environment(trace: str) -> int:
    """How many calls name a path of Python and its packages; a rank that waits looks at paths elsewhere."""
    return sum(path.startswith(_PLACES) for path in re.findall(r'^\d+ +\w+\([^"]*"([^"]+)"', trace, re.MULTILINE))


@pytest.mark.lab
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_rank_asks_the_file_system_no_more_than_the_readme_says(
    tmp_path: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compileall.compile_dir(PROJECT / "mpitrain", quiet=1)  # as pip does
    words = ["--data", str(small_history), "--epochs", "1", "--output", "run"]
    done = launch_traced(words, tmp_path)
    assert done.returncode == 0, done.stderr
    trace = (tmp_path / "calls-2").read_text()
    files, questions = files_of_environment(trace), questions_about_environment(trace)
    with capsys.disabled():
        print(f"\na rank opens {len(files)} files of its environment and asks {questions} times about their paths")
    assert 500 < len(files) <= MOST_FILES
    assert questions <= MOST_QUESTIONS


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


@pytest.mark.parametrize(
    "package", ["torch", "netCDF4", "PyYAML", "mpi4py", "typing_extensions", "no_package_of_this_name"]
)
def test_versions_are_those_of_the_metadata(package: str) -> None:
    try:
        expected = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        expected = ""
    assert installed_version.__wrapped__(package) == expected


def test_a_package_of_an_older_layout_has_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "older_layout.egg-info").write_text("Metadata-Version: 2.1\nName: older_layout\nVersion: 3.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version.__wrapped__("older_layout") == "3.1"
