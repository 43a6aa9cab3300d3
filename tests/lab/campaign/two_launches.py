"""Two launches of the command in one folder, forks of a process that has loaded everything, in planned turns.

`python tests/lab/campaign/two_launches.py FOLDER FIRST COUNT` plays interleavings by number and prints
what became of them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faulty_run import draw_nothing
from workers import exit_code_of

from mpitrain.models.files.stored_network import load_network
from mpitrain.train.checkpoint.store import CheckpointStore

SMALL = ("training.epochs=1", "model.hidden_size=4", "training.engine=eager", "model.name=mlp")
# Where a launch waits for its turn: before each of these.
_POINTS = (
    ("runs.train_run", "load_settings"),
    ("runs.train_run", "find_or_write_data"),
    ("runs.train_run", "open_folder"),
    ("runs.finish", "finish_run"),
    ("runs.watching", "save_claimed"),
    ("ensemble.run_ensemble", "prepare_folder"),
    ("ensemble.run_ensemble", "train_members"),
    ("ensemble.run_ensemble", "finish_ensemble"),
    ("train.folder.claim", "claim_folder"),
    ("train.folder.claim", "_create"),
    ("train.folder.claim", "release"),
)
_STEPS, _PATIENCE_S = 24, 120.0
_IN_USE = re.compile(r"mpitrain: error: \S+: in use by process (\d+) on (\S+) since [^;]+; wait for its end")
_HOLDS = re.compile(r"mpitrain: error: \S+: holds (a run|a run or an ensemble) already")


@dataclass
class Launch:
    """One launch, a fork of this process; it waits before each step."""

    words: Sequence[str]
    errors: Path
    process: int = 0
    steps: int = 0
    code: int | None = None
    _arrived: int = field(default=-1)
    _go: int = field(default=-1)

    def start(self) -> None:
        """Fork, and wait for the first step."""
        arrived, go = os.pipe(), os.pipe()
        self.process = os.fork()
        if self.process == 0:
            _play(self.words, self.errors, arrived[1], go[0])
        os.close(arrived[1])
        os.close(go[0])
        self._arrived, self._go = arrived[0], go[1]
        self._wait()

    def step(self) -> None:
        """Let it run to its next step, or to its end."""
        os.write(self._go, b"g")
        self.steps += 1
        self._wait()

    def kill(self) -> None:
        """End it as a node that is lost ends it."""
        os.kill(self.process, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        ready, _, _ = select.select([self._arrived], [], [], _PATIENCE_S)
        assert ready, f"{self.words}: no step for {_PATIENCE_S:.0f} s"
        if not os.read(self._arrived, 1):
            self.code = exit_code_of(self.process)
            os.close(self._arrived)
            os.close(self._go)

    @property
    def lines(self) -> list[str]:
        """The errors that it printed."""
        return [line for line in self.errors.read_text().splitlines() if line.startswith("mpitrain: error")]


def _play(words: Sequence[str], errors: Path, arrived: int, go: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        from mpitrain.cli.main import main

        draw_nothing()
        for module, name in _POINTS:
            owner = importlib.import_module(f"mpitrain.{module}")
            setattr(owner, name, _stepped(getattr(owner, name), arrived, go))
        code = main(list(words))
    finally:
        os._exit(code)


def _stepped(real: Callable[..., Any], arrived: int, go: int) -> Callable[..., Any]:
    def waits(*arguments: Any, **named: Any) -> Any:
        os.write(arrived, b"a")
        os.read(go, 1)
        return real(*arguments, **named)

    return waits


def play(launches: Sequence[Launch], order: Sequence[int], killed_at: int | None = None) -> None:
    """Let the launches take their steps in the order; the first is killed at its step `killed_at`."""
    for launch in launches:
        launch.start()
    for number in (*order, *([0] * 1000)):
        running = [one for one in launches if one.code is None]
        if not running:
            return
        chosen = launches[number] if launches[number].code is None else running[0]
        if killed_at is not None and chosen is launches[0] and chosen.steps >= killed_at:
            chosen.kill()
        else:
            chosen.step()


KINDS = ("plain", "overwrite", "resume", "ensemble", "refused", "killed")


class Interleavings:
    """Plays interleavings by number, each in a folder of its own, and judges what is left."""

    def __init__(self, folder: Path, history: Path) -> None:
        """Load what the forks need, and train what is overwritten and resumed."""
        for module in ("cli.main", "cli.train", "cli.ensemble", "comm.start", *dict(_POINTS)):
            importlib.import_module(f"mpitrain.{module}")
        self._folder, self._history = folder, history
        folder.mkdir(parents=True, exist_ok=True)
        self._trained = folder / "trained"
        if not self._trained.exists():
            first = Launch(self._train(self._trained, "seed=5"), folder / "trained.err")
            play([first], [])
            assert first.code == 0, first.errors.read_text()

    def _train(self, run: Path, *words: str) -> list[str]:
        return ["train", f"output.model_dir={run}", f"data.data_path={self._history}", *SMALL, *words]

    def _words(self, kind: str, run: Path, number: int) -> list[str]:
        if kind == "ensemble":
            start = ["ensemble", f"output.model_dir={run}", f"data.data_path={self._history}", *SMALL]
            return [*start, "ensemble.members=2", f"seed={number}"]
        if kind == "resume":
            return ["train", "--resume", str(run), f"training.epochs={2 + number}"]
        words = self._train(run, f"seed={number}")
        if kind == "refused" and number == 1:
            words.append("variables.input_variables=[no_such_variable]")
        return [*words, "--overwrite"] if kind == "overwrite" else words

    def play(self, number: int) -> str:
        """Play interleaving `number`; return its kind and how it ended. Raises AssertionError."""
        draw, kind = random.Random(number), KINDS[number % len(KINDS)]
        run = self._folder / f"run-{number}"
        shutil.rmtree(run, ignore_errors=True)
        if kind in ("overwrite", "resume"):
            shutil.copytree(self._trained, run)
        launches = [Launch(self._words(kind, run, one), run.with_suffix(f".{one}.err")) for one in (0, 1)]
        order = [draw.randrange(2) for _ in range(2 * _STEPS)]
        killed_at = draw.randrange(1, 12) if kind == "killed" else None
        play(launches, order, killed_at)
        codes = [one.code for one in launches]
        _judge(kind, launches, run)
        shutil.rmtree(run, ignore_errors=True)
        return f"{kind}: {' and '.join(map(str, sorted(codes, key=str)))}"


def _judge(kind: str, launches: Sequence[Launch], run: Path) -> None:
    codes = [one.code for one in launches]
    said = [one.lines for one in launches]
    if kind in ("plain", "ensemble"):
        assert sorted(codes, key=str) == [0, 2], (codes, said)
    if kind == "killed":
        assert codes[0] in (-signal.SIGKILL, 0, 2), (codes, said)
        assert codes[1] in (0, 2), (codes, said)
    else:
        assert set(codes) <= {0, 2}, (codes, said)
    for launch, other in zip(launches, reversed(launches), strict=True):
        if launch.code == 2:
            _judge_refusal(kind, launch, other)
    if 0 in codes and kind != "ensemble":
        _judge_run(run, launches)
    if codes == [2, 2]:
        assert kind in ("refused", "killed"), (codes, said)


def _judge_refusal(kind: str, launch: Launch, other: Launch) -> None:
    (line,) = launch.lines
    found = _IN_USE.match(line)
    if found:
        assert (int(found[1]), found[2]) == (other.process, socket.gethostname()), line
        return
    is_own_mistake = kind == "refused" and "no_such_variable" in line
    assert is_own_mistake or _HOLDS.match(line), line


def _judge_run(run: Path, launches: Sequence[Launch]) -> None:
    """All files of the folder are of one launch, which succeeded."""
    record = json.loads((run / "run_record.json").read_text())
    checkpoint, notices = CheckpointStore(run / "checkpoints").load_latest()
    assert notices == []
    assert load_network(run / "model.pt").run == record["run"] == checkpoint.state["run"]
    assert record["result"] is not None
    left = [json.loads(path.read_text())["process"] for path in run.glob(".claim-*")]
    killed = [launch.process for launch in launches if launch.code not in (0, 2)]
    assert set(left) <= set(killed), "a claim of a launch that has ended"
    seeds = [number for number, launch in enumerate(launches) if launch.code == 0]
    assert "--resume" in launches[0].words or record["settings"]["seed"] in seeds
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "records of two launches"


def main() -> None:
    """Play the interleavings that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    from mpitrain.synthetic.history import write_synthetic_history

    options.folder.mkdir(parents=True, exist_ok=True)
    history = options.folder / "history.nc"
    write_synthetic_history(history, seed=3, num_latitudes=48, num_longitudes=72)
    pair, table = Interleavings(options.folder, history), Counter[str]()
    for number in range(options.first, options.first + options.count):
        table[pair.play(number)] += 1
    for said, times in sorted(table.items()):
        print(f"{times:5} {said}")


if __name__ == "__main__":
    main()
