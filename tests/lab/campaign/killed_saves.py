"""A save that is killed at any of its system calls: the disk then holds the old checkpoint whole, or the new one.

`strace` kills the process as it enters its N-th call of a name. The process is a fork of this one, stopped until the
tracer holds it, so that counting begins with the save. A fork is allowed here: nothing of MPI was ever started.

`python tests/lab/campaign/killed_saves.py FOLDER [EVERY]` kills at every call, or at each EVERY-th, and prints a table.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from mpitrain.train.checkpoint.store import CheckpointStore

# Calls that touch files; the others change nothing that outlives the process.
CALLS = "openat,write,fsync,fdatasync,close,mkdir,rename,unlink,unlinkat,rmdir,getdents64,newfstatat,fstat,read,lseek"
OLD, NEW = 7, 8


def save(folder: Path, step: int) -> None:
    """Save a checkpoint whose tensors hold the number of its step and nothing else."""
    CheckpointStore(folder).save(
        {"weight": np.full((64, 64), float(step), np.float32)}, {"global_step": step}, {}, step
    )


def prepare(folder: Path) -> None:
    """Leave the newest three checkpoints, as in mid-run: the save that is killed also removes the oldest."""
    shutil.rmtree(folder, ignore_errors=True)
    for step in range(OLD - 2, OLD + 1):
        save(folder, step)


def save_traced(folder: Path, step: int, trace: Path, *options: str) -> int:
    """Save in a fork that strace follows; return its status as `os.waitpid` tells it."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            save(folder, step)
        finally:
            os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(trace), *options, "-p", str(child)], stderr=subprocess.DEVNULL
    )
    while _tracer_of(child) == 0:
        assert tracer.poll() is None, "strace cannot follow the process"
        time.sleep(0.002)
    os.kill(child, signal.SIGCONT)
    _, status = os.waitpid(child, 0)
    tracer.wait()
    return status


def _tracer_of(pid: int) -> int:
    found = re.search(r"TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) if found else 0


def calls_of_a_save(folder: Path) -> list[tuple[str, int]]:
    """Return every call of one save, as (name, how many of this name so far)."""
    prepare(folder / "counted")
    save_traced(folder / "counted", NEW, folder / "trace", "-e", f"trace={CALLS}")
    names = re.findall(r"^\d+ +(\w+)\(", (folder / "trace").read_text(), re.MULTILINE)
    return [(name, names[: number + 1].count(name)) for number, name in enumerate(names)]


def kill_at(folder: Path, name: str, number: int) -> str:
    """Kill a save at a call; return what is wrong with what it left, "" for nothing."""
    prepare(folder / "killed")
    rule = f"inject={name}:signal=KILL:when={number}"
    status = save_traced(folder / "killed", NEW, folder / "trace", "-e", f"trace={name}", "-e", rule)
    if not os.WIFSIGNALED(status):
        return f"it was not killed at {name} {number}"
    problem = _problem(folder / "killed", (OLD, NEW))
    if not problem:
        save(folder / "killed", NEW)  # the run that is started again
        problem = _problem(folder / "killed", (NEW,))
    leftovers = [path.name for path in (folder / "killed").iterdir() if "partial" in path.name]
    return problem or (f"is left: {leftovers}" if leftovers else "")


def _problem(folder: Path, allowed: tuple[int, ...]) -> str:
    checkpoint, _ = CheckpointStore(folder).load_latest()
    step = checkpoint.state["global_step"]
    if step not in allowed:
        return f"step {step} is the newest, of {allowed}"
    is_its_own = np.array_equal(checkpoint.tensors["weight"], np.full((64, 64), float(step), np.float32))
    return "" if is_its_own else f"step {step} holds {checkpoint.tensors['weight'].flatten()[0]}"


def main(folder: Path, every: int = 1) -> dict[str, str]:
    """Kill at every call, or at each `every`-th; print a table; return the problems by schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    schedules = calls_of_a_save(folder)[::every]
    problems = {f"{name} {number}": kill_at(folder, name, number) for name, number in schedules}
    for name, times in sorted(Counter(name for name, _ in schedules).items()):
        wrong = sum(bool(what) for schedule, what in problems.items() if schedule.split()[0] == name)
        print(f"killed at {name:12} {times:4} times, old or new checkpoint whole {times - wrong:4}")
    return {schedule: what for schedule, what in problems.items() if what}


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    print(found)
    sys.exit(bool(found))
