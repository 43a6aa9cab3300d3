"""A launch that is still running: its processes by rank, to be signalled, killed or seen to be gone (Linux)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, Finished, find_mpirun, launcher_environment

from mpitrain.cluster.launchers import RANK_VARIABLES


class RunningJob:
    """`mpirun` and everything that it started."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        if not Path("/proc/self/environ").exists():
            pytest.skip("finding the ranks' processes needs Linux's /proc")
        self._paths = output / "stdout", output / "stderr"
        with self._paths[0].open("w") as stdout, self._paths[1].open("w") as stderr:
            self._launcher = subprocess.Popen(
                command, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, env=launcher_environment()
            )
        self._seen: set[int] = set()

    def pid_of_rank(self, rank: int) -> int:
        """The process of a rank."""
        return {number: pid for pid in self.processes() if (number := _rank_of(pid)) is not None}[rank]

    def processes(self) -> set[int]:
        """All living processes of the job; they are remembered for `wait_until_gone`."""
        alive = {self._launcher.pid} | _descendants(self._launcher.pid)
        self._seen |= alive
        return alive

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until `condition` holds; the job must not end before."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert self._launcher.poll() is None, f"the job ended: {self._paths[1].read_text()}"
            assert time.monotonic() < deadline_s, "waited too long"
            time.sleep(0.005)
        self.processes()

    def wait(self, timeout_s: float = TIMEOUT_S) -> Finished:
        """Wait for the launcher's end; kill everything if it does not come, which fails the test."""
        try:
            returncode = self._launcher.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for pid in self.processes():
                subprocess.run(["kill", "-9", str(pid)], capture_output=True)
            self._launcher.wait()
            raise
        return Finished(returncode, *(path.read_text() for path in self._paths))

    def wait_until_gone(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every process that was seen is gone."""
        deadline_s = time.monotonic() + timeout_s
        while left := {pid for pid in self._seen if _is_alive(pid)}:
            assert time.monotonic() < deadline_s, f"processes are left: {left}"
            time.sleep(0.01)


def start_training(num_ranks: int, folder: Path, settings: Sequence[str], program: Sequence[str] = ()) -> RunningJob:
    """Start the public training command, or `program` in its place, and do not wait for its end."""
    start = [find_mpirun(), "-np", str(num_ranks), sys.executable, *(program or ["-m", "mpitrain"])]
    return RunningJob([*start, "train", f"output.model_dir={folder}", *settings], folder.parent)


def _rank_of(pid: int) -> int | None:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    variables = dict(entry.split(b"=", 1) for entry in content.split(b"\0") if b"=" in entry)
    return next((int(variables[name]) for name in map(str.encode, RANK_VARIABLES) if name in variables), None)


def _descendants(ancestor: int) -> set[int]:
    parents = {pid: parent for pid in _all_pids() if (parent := _parent_of(pid)) is not None}
    found = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {ancestor}


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str]:
    # The name, in brackets, may hold anything.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent_of(pid: int) -> int | None:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False
