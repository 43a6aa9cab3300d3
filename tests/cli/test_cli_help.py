"""`mpitrain help`: every topic can be listed and shown, plain in a pipe and rendered in a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, launcher_environment

from mpitrain.cli.help import TOPICS, topics
from mpitrain.cli.main import main
from mpitrain.version import __version__


def test_the_list_names_every_topic_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(topics()) >= 1
    for name, title in topics().items():
        assert title
        assert any(line.split() == [name, *title.split()] for line in lines)


@pytest.mark.parametrize("name", sorted(topics()))
def test_a_topic_in_a_pipe_is_its_markdown(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["help", *name.split("-")]) == 0
    assert capsys.readouterr().out == (TOPICS / f"{name}.md").read_text()


def test_in_a_terminal_a_topic_is_rendered() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mpitrain", "help", "trackers"]
    child = subprocess.Popen(command, stdout=theirs, env={**launcher_environment(), "TERM": "xterm-256color"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the terminal's other side is closed
            break
    os.close(ours)
    assert child.wait(TIMEOUT_S) == 0
    assert b"\x1b[" in shown
    assert b"| TensorBoard |" not in shown
    assert b"TensorBoard" in shown


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["traker"], "help traker: no such topic; did you mean trackers?"),
        (["track"], "help track: no such topic; did you mean trackers?"),
        (["zzz"], "help zzz: no such topic; `mpitrain help` lists all topics"),
        (["reproduce"], "help reproduce: no such topic; `mpitrain reproduce --help` explains the command"),
    ],
)
def test_an_unknown_topic_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], answer: str) -> None:
    assert main(["help", *words]) == 2
    assert capsys.readouterr().err == f"mpitrain: error: {answer}\n"


def test_a_wheel_holds_what_a_user_needs(tmp_path: Path) -> None:
    """Topics, licence and the mark of a typed package; its version is the package's own."""
    pytest.importorskip("wheel")
    copy = tmp_path / "copy"
    for name in ("mpitrain", "cpp_reference", "jobs"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, copy)
    build = [sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel", "-d", "made"]
    subprocess.run(build, cwd=copy, check=True, capture_output=True, timeout=TIMEOUT_S)
    (wheel,) = (copy / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in held if name.endswith(".dist-info/METADATA"))
    assert {f"mpitrain/help/{name}.md" for name in topics()} | {"mpitrain/py.typed"} <= held
    assert any(name.endswith("LICENSE") for name in held)
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\n# mpitrain\n" in metadata
    assert "Apache-2.0" in metadata


@pytest.mark.parametrize(
    "words", [["help"], ["config", "show"], ["config", "check"], ["config", "explain", "seed"],
              ["data", "inspect", "x.nc"], ["data", "generate", "x.nc"], ["report", "run"]]
)  # fmt: skip
def test_commands_of_one_process_say_it_once_under_mpirun(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert main(words) == 0
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("PMI_RANK", "0")
    main(words)
    assert capsys.readouterr() != ("", "")
