"""The C++ program's own tests, run by ctest: they are built from the sources, so only with --full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import launcher_environment

from mpitrain.native.toolchain import find_toolchain

BUILD_AND_TEST_TIMEOUT_S = 1500.0


@pytest.mark.slow
def test_ctest(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("compiles the program and its tests for minutes; --full")
    tools = find_toolchain()
    flags = [f"-DMPI_CXX_COMPILER={tools.mpi_compiler}", f"-DMPITRAIN_PYTHON={tools.python}", "-DBUILD_TESTING=ON"]
    for command in (
        [tools.cmake, "-S", str(tools.sources), "-B", str(tmp_path), *flags],
        [tools.cmake, "--build", str(tmp_path), "--parallel", str(os.cpu_count())],
        [str(Path(tools.cmake).with_name("ctest")), "--test-dir", str(tmp_path), "--output-on-failure"],
    ):
        done = subprocess.run(
            command, env=launcher_environment(), capture_output=True, text=True, timeout=BUILD_AND_TEST_TIMEOUT_S
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert "100% tests passed" in done.stdout
