"""Standard output and error that nobody reads, that are closed, or that lead to a full disk."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment


def run_in_shell(line: str, cwd: Path) -> tuple[int, str]:
    """Run a line of bash; return the exit code of its first command, and its standard error."""
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], cwd=cwd, env=launcher_environment(), capture_output=True,
        text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stderr


COMMAND = f"{shlex.quote(sys.executable)} -m mpitrain"
TRAINING = f"{COMMAND} training.epochs=2"
UNHEARD = {
    "closed and full": f"{TRAINING} >&- 2>/dev/full <&-",
    "nobody reads both": f"{TRAINING} 2>&1 | true",
    "closed": f"{TRAINING} >&- 2>&- <&-",
    "full": f"{TRAINING} >/dev/full 2>/dev/full",
}
LONG = tuple(UNHEARD)[1:]


@pytest.mark.lab
@pytest.mark.parametrize("name", UNHEARD)
def test_a_run_that_nobody_hears_goes_on_and_ends_with_0(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in LONG and not request.config.getoption("--full"):
        pytest.skip("one of them, and the ranks of the next test; --full")
    code, stderr = run_in_shell(UNHEARD[name], tmp_path)
    assert (code, [line for line in stderr.splitlines() if "note: " not in line and "step " not in line]) == (0, [])
    folder = tmp_path / "mpitrain_run"
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "report.html").exists()


@pytest.mark.lab
def test_ranks_that_nobody_hears_go_on(tmp_path: Path) -> None:
    # What the launcher does with its own output is the launcher's: here the ranks' own pipes have no reader.
    ranks = f"sh -c {shlex.quote(TRAINING + ' 2>&1 | true')}"
    run_in_shell(f"{find_mpirun()} -np 2 {ranks}", tmp_path)
    assert len((tmp_path / "mpitrain_run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert (tmp_path / "mpitrain_run" / "report.html").exists()


def test_an_error_that_nobody_hears_has_its_exit_code(tmp_path: Path) -> None:
    for end in ("2>&1 | true", ">&- 2>&-", ">/dev/full 2>/dev/full"):
        assert run_in_shell(f"{COMMAND} config check none.yaml {end}", tmp_path)[0] == 2
    assert run_in_shell(f"{TRAINING} data.data_path=none.nc >&- 2>/dev/full", tmp_path)[0] == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.lab
def test_what_is_printed_as_a_product_is_whole_or_an_error(tmp_path: Path) -> None:
    code, stderr = run_in_shell(f"{COMMAND} config schema >/dev/full", tmp_path)
    assert (code, stderr) == (2, "mpitrain: error: standard output: cannot be written (No space left on device)\n")
    code, stderr = run_in_shell(f"{COMMAND} config schema | head -1", tmp_path)
    assert (code, stderr) == (0, "")
    assert run_in_shell(f"{COMMAND} --help | true", tmp_path) == (0, "")
