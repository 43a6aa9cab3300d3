"""Runs that are killed or stopped at random instants and resumed, by number, until they are done: one hash for all.

Each start is a fork of this process, which has loaded everything and started nothing of MPI: a start costs a tenth.

`python tests/lab/campaign/killed_runs.py FOLDER FIRST COUNT --at-once 3` prints how often runs were killed, and
their hash. Begun again in the same folder, it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faulty_run import draw_nothing
from workers import Done, exit_code_of, play_in_workers

from mpitrain.errors import CheckpointError
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.checkpoint.store import CheckpointStore

SETTINGS = [
    "training.epochs=12",
    "training.save_interval=1",
    "training.global_batch_size=256",
    "training.max_steps=null",
]
MOST_KILLS = 4
STOPPED = 5


@dataclass
class Outcome:
    """What became of one run: its hash, how often it was killed and stopped, what went wrong ("" for nothing)."""

    hash: str
    kills: int
    stops: int
    problem: str


def start(folder: Path, history: Path, words: list[str]) -> int:
    """Start the command in a fork; return its process number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        from mpitrain.cli.main import main

        draw_nothing()
        code = main(["train", f"output.model_dir={folder}", f"data.data_path={history}", *SETTINGS, *words])
    finally:
        os._exit(code)


def newest_step(folder: Path) -> int:
    """Return the step of the newest whole checkpoint, 0 where there is none."""
    try:
        return int(CheckpointStore(folder / "checkpoints").load_latest()[0].state["global_step"])
    except CheckpointError:
        return 0


def hash_of(folder: Path) -> tuple[str, list[str]]:
    """Return the SHA-256 of everything in the newest whole checkpoint, and what is said of newer ones."""
    checkpoint, notices = CheckpointStore(folder / "checkpoints").load_latest()
    return weights_sha256(dict(sorted(checkpoint.tensors.items()))), notices


def play(number: int, folder: Path, history: Path, lasts_s: float) -> Outcome:
    """Run schedule `number`: kill or stop the run at instants drawn from its seed, resume it each time, and look."""
    draw, run = random.Random(number), folder / f"run-{number}"
    kills = stops = held = 0
    shutil.rmtree(run, ignore_errors=True)  # what a campaign that was ended has left
    for _ in range(draw.randrange(1, MOST_KILLS + 1)):
        process = start(run, history, _words(run, held))
        time.sleep(draw.uniform(0, lasts_s))
        stopping = draw.random() < 0.3
        os.kill(process, signal.SIGTERM if stopping else signal.SIGKILL)
        code = exit_code_of(process)
        stops, kills = stops + (code == STOPPED), kills + (code == -signal.SIGKILL)
        if code not in (0, STOPPED, -signal.SIGKILL, -signal.SIGTERM):
            return Outcome("", kills, stops, f"exit code {code}: {run.with_suffix('.err').read_text()[-300:]}")
        before, held = held, newest_step(run)
        if held < before:
            return Outcome("", kills, stops, f"step {before} was saved, {held} is left")
    process = start(run, history, _words(run, held))
    code = exit_code_of(process)
    if code != 0:
        return Outcome(
            "", kills, stops, f"the last start: exit code {code}: {run.with_suffix('.err').read_text()[-300:]}"
        )
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    problem = "" if steps == sorted(set(steps)) else f"metrics tell of steps {steps}"
    digest, notices = hash_of(run)
    shutil.rmtree(run)
    return Outcome(digest, kills, stops, problem or "; ".join(notices))


def _words(run: Path, held: int) -> list[str]:
    return ["--resume"] if held else ["--overwrite"] if run.exists() else []


def prepare(folder: Path) -> tuple[Path, str]:
    """Load everything, once for all forks; return the data, and the hash of a run that nobody disturbs."""
    import mpitrain.runs.train_run  # noqa: F401
    from mpitrain.synthetic.history import write_synthetic_history

    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "history.nc"
    write_synthetic_history(history, seed=3, num_latitudes=48, num_longitudes=72)
    undisturbed(folder / "undisturbed", history)  # builds what is kept
    return history, hash_of(folder / "undisturbed")[0]


def undisturbed(run: Path, history: Path) -> float:
    """Run to the end; return the seconds that it took."""
    shutil.rmtree(run, ignore_errors=True)
    began_s = time.monotonic()
    code = exit_code_of(start(run, history, []))
    assert code == 0, run.with_suffix(".err").read_text()
    return time.monotonic() - began_s


def begin(folder: Path, history: Path) -> Callable[[int], Outcome]:
    """Return what plays a number beside the other workers, which all make each other slower."""
    lasts_s = undisturbed(folder / f"undisturbed-{os.getpid()}", history)
    return lambda number: play(number, folder, history, lasts_s)


def main(folder: Path, first: int, count: int, at_once: int) -> int:
    """Play `count` schedules from number `first`; print what they have in common; return how many went wrong.

    `done.txt` in the folder lists those that went well: they are not played again.
    """
    history, expected = prepare(folder)
    done, wrong, kills, stops = Done(folder / "done.txt"), 0, 0, 0
    asked = range(first, first + count)
    todo = [number for number in asked if number not in done.numbers]
    for number, outcome in play_in_workers(lambda: begin(folder, history), todo, at_once):
        kills, stops = kills + outcome.kills, stops + outcome.stops
        if outcome.problem or outcome.hash != expected:
            wrong += 1
            print(number, outcome, flush=True)
        else:
            done.add(number)
    print(f"{count} runs, {kills} kills, {stops} stops with a checkpoint ({count - len(todo)} runs were known)")
    print(f"{len(done.numbers.intersection(asked))} have the hash {expected[:12]}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--at-once", type=int, default=1)
    words = parser.parse_args()
    sys.exit(min(1, main(words.folder, words.first, words.count, words.at_once)))
