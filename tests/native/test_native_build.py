"""The C++ program is built once for a set of sources and tools, or not at all."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cpp_program import cpp_program, need_cpp_toolchain

from mpitrain.errors import MissingDependencyError
from mpitrain.native import build, toolchain
from mpitrain.native.build import PROGRAM, build_program
from mpitrain.native.toolchain import Toolchain, find_toolchain

# A project of one file in place of the C++ program: what is tried here is not the compiler's patience.
PROJECT = f"""
cmake_minimum_required(VERSION 3.21)
project(small LANGUAGES CXX)
add_executable({PROGRAM} main.cpp)
"""
SOUND = "int main() { return 0; }\n"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    """The real tools, a small project, and a cache of its own."""
    need_cpp_toolchain()
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "CMakeLists.txt").write_text(PROJECT)
    (sources / "main.cpp").write_text(SOUND)
    return dataclasses.replace(find_toolchain(), sources=sources)


def built_things(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "cache").rglob("*"))


def test_a_second_call_builds_nothing() -> None:
    program = cpp_program()
    said: list[str] = []
    assert build_program(find_toolchain(), said.append) == program
    assert said == []
    assert os.access(program, os.X_OK)
    assert {path.name for path in program.parent.iterdir()} == {PROGRAM}  # and no objects next to it


def test_it_is_built_once_and_again_for_another_source(small: Toolchain, tmp_path: Path) -> None:
    said: list[str] = []
    first = build_program(small, said.append)
    assert subprocess.run([first], check=False).returncode == 0
    folder = f"cache/{first.parent.name}"
    assert built_things(tmp_path) == [folder, f"{folder}/{PROGRAM}"]
    assert [line.split()[0] for line in said] == ["building", "configured;"]
    assert build_program(small, said.append) == first
    assert len(said) == 2
    (small.sources / "main.cpp").write_text("int main() { return 7; }\n")
    second = build_program(small, said.append)
    assert second != first
    assert subprocess.run([second], check=False).returncode == 7
    assert first.exists()


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("main.cpp", '#include "errors.hpp"\nint main() { return nothing_of_that_name; }\n', "nothing_of_that_name"),
        ("main.cpp", SOUND + "int missing();\nint x = missing();\n", "undefined reference to `missing()'"),
        (
            "CMakeLists.txt",
            PROJECT + 'file(WRITE "$ENV{TMPDIR}/left.s" "")\nmessage(FATAL_ERROR "a library is not here")\n',
            "CMakeLists.txt:6 (message): a library is not here",
        ),
        ("CMakeLists.txt", "no_such_command()\n", "no_such_command"),
    ],
)
def test_a_failed_build_is_one_line_and_leaves_nothing(
    small: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, complaint: str
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    # A warning inside a file whose name has "error" in it is no complaint.
    (small.sources / "errors.hpp").write_text("#warning errors are handled elsewhere\n")
    (small.sources / file).write_text(text)
    with pytest.raises(MissingDependencyError) as caught:
        build_program(small, lambda _: None)
    message = str(caught.value)
    assert "\n" not in message
    assert complaint in message.partition("; the command was: ")[0]
    assert "warning" not in message.partition("; the command was: ")[0]
    assert built_things(tmp_path) == []
    assert not list((tmp_path / "scratch").iterdir())


def test_an_interrupted_build_leaves_nothing(small: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build.subprocess, "run", interrupt)
    monkeypatch.setattr(Toolchain, "identity", lambda _: "tools")
    with pytest.raises(KeyboardInterrupt):
        build_program(small, lambda _: None)
    assert not (tmp_path / "cache").exists() or built_things(tmp_path) == []


@pytest.mark.parametrize("spoilt", ["cache", "folder", "program"])
def test_a_program_that_others_can_write_to_is_built_anew(
    small: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    """Else whoever shares the cache has their program run."""
    built: list[Path] = []

    def play(command: list[str], what: str, _: Path) -> None:
        folder = Path(command[command.index("-B" if what == "configuring" else "--build") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROGRAM).write_text("ours")
        built.append(folder)

    monkeypatch.setattr(build, "_run", play)
    monkeypatch.setattr(Toolchain, "identity", lambda _: "tools")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    umask = os.umask(0o002)
    try:
        program = build_program(small, lambda _: None)
    finally:
        os.umask(umask)
    assert built
    built.clear()
    assert build_program(small, lambda _: None) == program
    assert not built, "else it is built each time"
    program.write_text("a stranger's")
    {"cache": tmp_path / "cache", "folder": program.parent, "program": program}[spoilt].chmod(0o777)
    program = build_program(small, lambda _: None)
    assert program.read_text() == "ours"
    assert build_program(small, lambda _: None) == program
    assert program.is_relative_to(tmp_path / ("tmp" if spoilt == "cache" else "cache"))


def test_other_tools_are_another_program(small: Toolchain, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = {small.identity()}
    for change in ({"cmake": "/other/cmake"}, {"mpi_compiler": "/bin/true"}, {"python": "/other/python"}):
        identities.add(dataclasses.replace(small, **change).identity())
    monkeypatch.setattr(toolchain.importlib.metadata, "version", lambda _: "99.0")
    identities.add(small.identity())
    # Nodes that share a home folder may have other instructions.
    older = dataclasses.replace(small.cpu, instruction_sets=("sse3",))
    identities.add(dataclasses.replace(small, cpu=older).identity())
    assert len(identities) == 6


def test_without_libtorch_the_plain_engine_is_built(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("compiles for a minute; --full")
    tools = find_toolchain()
    flags = [f"-DMPI_CXX_COMPILER={tools.mpi_compiler}", "-DMPITRAIN_PYTHON=/nonexistent", "-DBUILD_TESTING=OFF"]
    subprocess.run([tools.cmake, "-S", tools.sources, "-B", tmp_path, *flags], check=True, capture_output=True)
    subprocess.run([tools.cmake, "--build", tmp_path, "--parallel", "2"], check=True, capture_output=True)
    program = [tools.mpirun, "-np", "1", str(tmp_path / PROGRAM)]
    help_text = subprocess.run([*program, "--help"], check=True, capture_output=True, text=True).stdout
    assert "--engine torch|plain" in help_text
    asked = subprocess.run([*program, "--history", "x.nc", "--engine", "torch"], capture_output=True, text=True)
    assert asked.returncode == 2
    assert "--engine torch: this program was built without libtorch; give --engine plain" in asked.stderr


def test_python_runs_this() -> None:
    need_cpp_toolchain()
    assert find_toolchain().python == sys.executable
