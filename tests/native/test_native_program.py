"""A program under mpirun: its output comes back, and its failure as the error that it is."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment

from mpitrain.errors import LaunchError, MpitrainError, UserError
from mpitrain.native.program import run_under_mpi


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launcher_environment().items():
        monkeypatch.setenv(name, value)


def run(code: str, num_ranks: int = 2, timeout_s: float = TIMEOUT_S) -> str:
    return run_under_mpi(find_mpirun(), num_ranks, [sys.executable, "-c", code], timeout_s)


def test_the_output_of_all_ranks_comes_back() -> None:
    # One write a line, with PYTHONUNBUFFERED set too: mpirun mixes the ranks' output as it comes.
    assert run(r"import sys; sys.stdout.write('a line\n')", 3).split("\n").count("a line") == 3


@pytest.mark.parametrize(
    ("exit_code", "kind"), [(1, MpitrainError), (2, UserError), (3, LaunchError), (4, MpitrainError)]
)
def test_a_failure_is_the_error_that_its_exit_code_says(exit_code: int, kind: type) -> None:
    code = f"import sys; print('note', file=sys.stderr); sys.stderr.write('program: error: x.nc: broken; fix it\\n'); sys.exit({exit_code})"  # noqa: E501
    with pytest.raises(kind) as caught:
        run(code, 1)
    assert type(caught.value) is kind
    assert "x.nc: broken; fix it" in str(caught.value)
    assert "\n" not in str(caught.value)
    if kind is MpitrainError:
        assert f"exit code {exit_code} of `" in str(caught.value)


def test_a_silent_failure_names_the_command() -> None:
    with pytest.raises(MpitrainError, match=r"exit code 9 of `.*mpirun -np 1 .*`: "):
        run("import os; os._exit(9)", 1)


def test_no_end_in_time_is_an_error() -> None:
    with pytest.raises(MpitrainError, match=r"did not end within 1 s: .*mpirun -np 1 "):
        run("import time; time.sleep(600)", 1, timeout_s=1.0)


_STARTS_RANKS = """
import sys
from mpitrain.native.program import run_under_mpi
from mpitrain.native.toolchain import find_mpirun
wait = "import os, sys, time; open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close(); time.sleep(600)"
run_under_mpi(find_mpirun(), 2, [sys.executable, "-c", wait, sys.argv[1]])
"""


def test_what_was_started_ends_with_a_process_that_is_told_to(tmp_path: Path) -> None:
    starting = subprocess.Popen([sys.executable, "-c", _STARTS_RANKS, str(tmp_path)])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    starting.terminate()
    assert starting.wait(timeout=TIMEOUT_S) == 128 + signal.SIGTERM
    wait_until(lambda: not any(is_alive(int(path.name)) for path in tmp_path.iterdir()))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
