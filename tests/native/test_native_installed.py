"""What `pip install` would install: the package and, inside it, the C++ sources that `mpitrain verify` builds."""

from __future__ import annotations

import email
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT

import mpitrain


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that setuptools makes of a copy of the project: what a wheel holds."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("mpitrain", "cpp_reference", "tests/cpp", "jobs"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, copy)
    target = copy / "installed"
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_py", "--build-lib", str(target)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_nothing_but_the_package_lies_on_top(installed: Path) -> None:
    assert [path.name for path in installed.iterdir()] == ["mpitrain"]


def test_the_metadata_name_licence_version_and_pythons(installed: Path) -> None:
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "egg_info", "--egg-base", str(installed.parent)]
    done = subprocess.run(command, cwd=installed.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metadata = email.message_from_string((installed.parent / "mpitrain.egg-info" / "PKG-INFO").read_text())
    assert metadata["Version"] == mpitrain.__version__
    assert "Apache-2.0" in (metadata["License"], metadata["License-Expression"])
    assert metadata["License-File"] == "LICENSE"
    minimum = metadata["Requires-Python"].removeprefix(">=")
    assert f"Python {minimum} or newer" in (PROJECT / "README.md").read_text()
    assert f"Programming Language :: Python :: {minimum}" in metadata.get_all("Classifier")
    assert (installed / "mpitrain" / "py.typed").is_file()


def test_every_module_and_every_source_is_there(installed: Path) -> None:
    modules = {path.relative_to(PROJECT) for path in (PROJECT / "mpitrain").rglob("*.py")}
    assert {path.relative_to(installed) for path in installed.rglob("*.py")} == modules
    sources = {path.name for path in (PROJECT / "cpp_reference").iterdir() if path.is_file()}
    assert {"CMakeLists.txt", "main.cpp", "engine.hpp"} <= sources
    assert {path.name for path in (installed / "mpitrain" / "cpp_reference").iterdir()} == sources
    for name in sources:
        assert (installed / "mpitrain" / "cpp_reference" / name).read_bytes() == (
            PROJECT / "cpp_reference" / name
        ).read_bytes()


def test_the_installed_package_finds_its_own_sources(installed: Path, tmp_path: Path) -> None:
    code = (
        "import json, mpitrain\nfrom mpitrain.native.toolchain import find_sources\n"
        "print(json.dumps([mpitrain.__file__, str(find_sources())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    package, sources = map(Path, json.loads(done.stdout))
    assert package.is_relative_to(installed)
    assert sources == installed / "mpitrain" / "cpp_reference"
