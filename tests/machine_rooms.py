"""Run the tier `machine` room by room, as many rooms as fit into the time: those first whose code has changed.

    python3 tests/machine_rooms.py SECONDS_LEFT

A room is begun only if the time that it took before, in units of `import torch` on this machine, fits into what is
left. The rooms that are left out are printed, and at the end again what failed. The exit code is 1 if any room fails.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PYTHON = PROJECT / ".venv-tests" / "bin" / "python"
NUM_COMMITS = 50
MOST_FAILURE_LINES = 40  # of a room, printed again at the end


@dataclass(frozen=True)
class Room:
    """A room of the tests: its time in imports of torch, and the folders whose change concerns it."""

    name: str
    imports: float
    code: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        own = "tests/test_" if self.name == "top" else f"tests/{self.name}/"
        return (own, *(f"mpitrain/{folder}/" if "/" not in folder else folder for folder in self.code))


# In the order of their times; `.ci/run` prints the time of each room in the same unit.
ROOMS = (
    Room("native", 10, ("native", "cpp_reference/")),
    Room("cluster", 15, ("cluster", "comm")),
    Room("collection", 20, ("datatools", "jobs/")),
    Room("python", 30, ("python", "runs", "inference")),
    Room("cpp", 30, ("native", "cpp_reference/")),
    Room("inference", 60, ("inference", "runs", "models")),
    Room("observe", 60, ("observe",)),
    Room("doctor", 60, ("doctor", "comm", "cluster")),
    Room("launch", 70, ("launch", "jobs/")),
    Room("runs", 70, ("runs",)),
    Room("cli", 70, ("cli", "config", "help")),
    Room("export", 80, ("export", "models")),
    Room("models", 90, ("models", "networks")),
    Room("data", 110, ("data", "datatools", "synthetic")),
    Room("top", 130, ("cli", "runs", "config", "README.md/")),
    Room("ensemble", 160, ("ensemble",)),
    Room("machines", 160, ("train", "data", "models")),
    Room("slurm", 170, ("launch", "comm", "cluster")),
    Room("comm", 190, ("comm", "cluster")),
    Room("verify", 200, ("verify", "cpp_reference/", "train")),
    Room("campaign", 260, ("train", "comm", "data")),
    Room("bench", 290, ("bench", "train")),
    Room("train", 480, ("train", "comm", "data")),
)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def changed_files() -> list[str]:
    """The files that changed since the last tag or in the last commits, whichever is less; else all."""
    tag, before = git("describe", "--tags", "--abbrev=0").strip(), git("rev-list", "-1", f"HEAD~{NUM_COMMITS}").strip()
    since = tag if tag and int(git("rev-list", "--count", f"{tag}..HEAD")) < NUM_COMMITS else before
    return git("diff", "--name-only", since, "HEAD").split("\n") if since else git("ls-files").split("\n")


def in_order(rooms: Sequence[Room], changed: Iterable[str], turn: int) -> list[Room]:
    """The rooms whose code changed, the quickest first; then the others, a later one first at each turn.

    So that a room that never fits behind the others comes to its turn.
    """
    changed = list(changed)
    is_changed = {room.name: any(name.startswith(room.folders) for name in changed) for room in rooms}
    first = sorted((room for room in rooms if is_changed[room.name]), key=lambda room: room.imports)
    rest = [room for room in rooms if not is_changed[room.name]]
    start = turn % len(rest) if rest else 0
    return first + rest[start:] + rest[:start]


def import_torch_s() -> float:
    """Seconds of two imports of torch at once, as two files of tests run at once: the median of three."""
    times_s = []
    for _ in range(3):
        started_s = time.monotonic()
        importing = [subprocess.Popen([PYTHON, "-c", "import torch"]) for _ in range(2)]
        if any([process.wait() for process in importing]):
            raise SystemExit(f"{PYTHON} cannot import torch: run tests/run.sh first")
        times_s.append(time.monotonic() - started_s)
    return statistics.median(times_s)


def run_room(room: Room, unit_s: float) -> list[str]:
    """Run the room's tests of this tier, say how long they took, and return the lines of those that failed."""
    started_s, failures = time.monotonic(), []
    command = ["bash", "tests/run.sh", "--room", room.name, "--tier", "machine"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, errors="replace") as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            failures += [line.rstrip()] if line.startswith(("FAILED ", "ERROR ", "E  ")) else []
    seconds = time.monotonic() - started_s
    imports = f"{seconds / unit_s:.0f} imports of torch (expected {room.imports:.0f})"
    print(
        f"== room {room.name}: {'FAILED' if running.returncode else 'passed'}, {seconds:.0f} s = {imports}", flush=True
    )
    return (failures or ["no test's line says why"]) if running.returncode else []


def main(left_s: float) -> int:
    deadline_s, unit_s = time.monotonic() + left_s, import_torch_s()
    print(f"== tier machine: {left_s:.0f} s left, import torch takes {unit_s:.2f} s", flush=True)
    failed: dict[str, list[str]] = {}
    left_out = []
    for room in in_order(ROOMS, changed_files(), int(git("rev-list", "--count", "HEAD") or 0)):
        if room.imports * unit_s > deadline_s - time.monotonic():
            left_out.append(room.name)
        elif failures := run_room(room, unit_s):
            failed[room.name] = failures
    print(f"== tier machine: left out for lack of time: {', '.join(left_out) or 'none'}")
    for name, failures in failed.items():
        print(f"== room {name} failed:", *failures[:MOST_FAILURE_LINES], sep="\n")
    print(f"== tier machine: failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
