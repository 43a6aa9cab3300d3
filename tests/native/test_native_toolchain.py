"""What is missing for building the C++ program is named, with what to install."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from conftest import launch

from mpitrain.errors import MissingDependencyError
from mpitrain.native import toolchain
from mpitrain.native.toolchain import find_mpirun, find_sources, find_toolchain

TOOLS = ("cmake", "c++", "mpicxx", "pkg-config", "mpirun")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one folder with stand-ins for all tools, and a Python with nothing next to it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        program = folder / name
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "bin" / "python"))
    return folder


def test_all_tools_are_found(tools: Path) -> None:
    found = find_toolchain()
    assert (found.cmake, found.mpi_compiler, found.mpirun) == tuple(
        str(tools / name) for name in ("cmake", "mpicxx", "mpirun")
    )


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("cmake", ("no cmake on the PATH", "pip install cmake", "apt-get install cmake", "module load")),
        ("c++", ("no c++ on the PATH", "C++20 compiler", "apt-get install g++")),
        ("mpicxx", ("no mpicxx next to Python or on the PATH", "mpitrain[mpich]", "apt-get install libmpich-dev")),
        ("pkg-config", ("no pkg-config on the PATH", "apt-get install pkg-config")),
        ("mpirun", ("no mpirun next to Python or on the PATH", "mpitrain[mpich]")),
    ],
)
def test_a_missing_tool_is_named_with_its_package(tools: Path, missing: str, words: tuple[str, ...]) -> None:
    (tools / missing).unlink()
    with pytest.raises(MissingDependencyError) as caught:
        find_toolchain()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_missing_netcdf_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real pkg-config, which is told to look into an empty folder."""
    monkeypatch.setenv("PKG_CONFIG_LIBDIR", str(tmp_path))
    monkeypatch.delenv("PKG_CONFIG_PATH", raising=False)
    with pytest.raises(MissingDependencyError, match=r"netCDF's C library: .*apt-get install libnetcdf-dev"):
        find_toolchain()


def test_the_tools_beside_python_come_first(tools: Path) -> None:
    """A wheel's MPI library is what mpi4py loads: compiler and launcher must be its own."""
    beside = Path(sys.executable).parent
    beside.mkdir(parents=True)
    for name in ("mpicxx", "mpirun"):
        shutil.copy(tools / name, beside)
    found = find_toolchain()
    assert (found.mpi_compiler, found.mpirun) == (str(beside / "mpicxx"), str(beside / "mpirun"))
    assert found.cmake == str(tools / "cmake")


def test_mpiexec_serves_where_there_is_no_mpirun(tools: Path) -> None:
    (tools / "mpirun").rename(tools / "mpiexec")
    assert find_mpirun() == str(tools / "mpiexec")


def test_missing_sources_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "__file__", str(tmp_path / "mpitrain" / "native" / "toolchain.py"))
    with pytest.raises(MissingDependencyError, match=r"the C\+\+ sources \(cpp_reference/\) are missing; reinstall"):
        find_sources()


def test_the_public_command_says_it_in_one_line(tmp_path: Path) -> None:
    done = launch(["-m", "mpitrain", "verify", "--output", str(tmp_path / "out")], environ={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.our_lines[0].startswith("mpitrain: error: no cmake on the PATH")
    assert not (tmp_path / "out").exists()
