from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import TIMEOUT_S

from mpitrain.observe.terminal import (
    ProcessStatus,
    Terminal,
    find_launcher,
    open_stream_terminal,
    parse_process_status,
    read_process_status,
)

BESIDE_PYTHON = Path(sys.executable).parent / "mpirun"
MPIRUN = str(BESIDE_PYTHON) if BESIDE_PYTHON.exists() else shutil.which("mpirun")
ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from mpitrain.observe.open_progress import open_progress
if "0" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    with open_progress("auto", total_steps=5, first_step=0, stream=sys.stderr) as progress:
        for step in range(1, 6):
            progress.update(step, step, 5, 0.5, None, 1e-3)
"""


def test_parse_status_of_a_name_with_brackets() -> None:
    status = parse_process_status("12 (a) (b) S 7 8 9 34816 8 4194304 1 2")
    assert status == ProcessStatus("a) (b", parent_pid=7, process_group=8, foreground_group=8)
    assert status.in_foreground


def test_read_own_status() -> None:
    status = read_process_status(os.getpid())
    assert status is not None
    assert (status.parent_pid, status.process_group) == (os.getppid(), os.getpgrp())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({3: "hydra_pmi_proxy", 2: "mpirun", 1: "bash"}, 2),
        ({3: "prterun", 2: "mpirun", 1: "bash"}, 3),
        ({3: "mpiexec.hydra", 2: "mpirun", 1: "bash"}, 3),
        ({3: "slurmstepd", 2: "init"}, None),
        ({3: "sshd"}, None),
    ],
)
def test_find_the_nearest_launcher(names: dict[int, str], expected: int | None) -> None:
    def read(pid: int) -> ProcessStatus | None:
        return ProcessStatus(names[pid], pid - 1, 1, 1) if pid in names else None

    assert find_launcher(3, read) == expected


def test_full_terminal_drops_instead_of_blocking() -> None:
    read_end, write_end = os.openpty()
    with os.fdopen(write_end, "w") as stream:
        terminal = open_stream_terminal(stream)
        assert isinstance(terminal, Terminal)
        # nobody reads, as after Ctrl-S; in a thread, so that a write that blocks fails the test instead of hanging it
        writer = threading.Thread(target=lambda: [terminal.write("x" * 100) for _ in range(2000)], daemon=True)
        writer.start()
        writer.join(timeout=TIMEOUT_S)
        assert not writer.is_alive()
        assert os.get_blocking(write_end)  # the caller's own descriptor is as it was
        assert terminal.may_write()
        terminal.close()
    os.close(read_end)


def test_file_is_no_terminal(tmp_path: Path) -> None:
    with (tmp_path / "stderr.txt").open("w") as stream:
        assert open_stream_terminal(stream) is None
    assert open_stream_terminal(stream) is None


@pytest.mark.skipif(MPIRUN is None, reason="no mpirun next to Python or on PATH")
@pytest.mark.parametrize(
    ("shell_line", "expected"),
    [
        ('"$@"', "bar"),
        ('"$@" 2>&1 | cat', "lines"),
        ('"$@" 2> stderr.txt; cat stderr.txt', "lines"),
        ('set -m; "$@" & wait', "lines"),  # a job in the background
    ],
    ids=["terminal", "pipe", "file", "background"],
)
def test_under_mpirun(tmp_path: Path, shell_line: str, expected: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [str(MPIRUN), *_oversubscribe(), "-np", "2", sys.executable, str(program)]
    seen = _run_on_a_terminal(["bash", "-c", shell_line, "bash", *command], tmp_path)
    assert ("\x1b[2K" in seen, "step 5/5" in seen) == (expected == "bar", expected == "lines"), seen
    assert "epoch 5/5" in seen


def _oversubscribe() -> list[str]:
    version = subprocess.run([str(MPIRUN), "--version"], capture_output=True, text=True, check=False).stdout
    return ["--oversubscribe"] if "Open MPI" in version or "PRRTE" in version else []


def _run_on_a_terminal(command: list[str], folder: Path) -> str:
    """Run a command as a user's shell would, on a pseudo-terminal of its own, and return what its screen got."""
    environ = {
        **os.environ,
        "TERM": "xterm",
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    helper = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"
    # a process in between: forking the test process itself would copy its threads' locks
    done = subprocess.run(
        [sys.executable, "-c", helper, *command],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout.decode()
