"""Stop, save, resume, restart: the model's guarantees hold, each fails without its safeguard, and real runs fit it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import Finished, launch, train

MODEL = Path(__file__).with_name("protocol.pml")
NO_GARBAGE = "((loaded==0)||(content[loaded]==1))||(content[loaded]==2)"
NOTHING_LOST = "loaded>=saved"
STOPPED_WITH_CHECKPOINT = "newest==stopped_at[0]"
# The switch that takes a safeguard out, and the property that fails without it.
SAFEGUARDS = {
    "NO_CHECKSUM": NO_GARBAGE,
    "NO_COMMIT_RECORD": NO_GARBAGE,
    "NO_SYNC": NOTHING_LOST,
    "NO_SYNC_OF_WHAT_IS_FOUND": NOTHING_LOST,
    "REPLACES_WHAT_IS_COMMITTED": NOTHING_LOST,
    "REMOVES_OLDER_FIRST": NOTHING_LOST,
    "NO_CUTTING_BACK": "records[s]==1",
    "NO_AGREEMENT": STOPPED_WITH_CHECKPOINT,
    "NO_BARRIER_AFTER_SAVING": STOPPED_WITH_CHECKPOINT,
}
NUMBERS = {"STARTS": 1, "ENDS": 2, "HOLDS": 3}
Event = tuple[str, int]

pytestmark = [
    pytest.mark.skipif(shutil.which("spin") is None, reason="needs Spin: apt-get install spin"),
]


def check(
    folder: Path, *switches: str, compiler: Sequence[str] = ("-O0", "-DSAFETY", "-DNOCLAIM"), search: str = ""
) -> str:
    """Search all states of the model with these switches; return what the checker says."""
    folder.mkdir(exist_ok=True)
    shutil.copy(MODEL, folder)
    flags = [f"-D{switch}" for switch in switches]
    for command in (
        ["spin", *flags, "-a", MODEL.name],
        ["gcc", "-w", "-DVECTORSZ=2048", *compiler, "-o", "pan", "pan.c"],
        ["./pan", "-m200000", *search.split()],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        assert "syntax error" not in done.stdout + done.stderr, done.stdout
    assert "errors: " in done.stdout, done.stdout + done.stderr
    assert "max search depth too small" not in done.stdout
    return done.stdout


def test_nothing_is_lost_no_garbage_is_loaded_and_a_stop_leaves_a_checkpoint(tmp_path: Path) -> None:
    said = check(tmp_path)
    assert "errors: 0" in said, said
    assert "+ (never" not in said


LIVE = ("-O0", "-DNFAIR=5")


def test_every_run_comes_to_an_end_because_restarts_are_bounded(tmp_path: Path) -> None:
    small = ("STEPS=1", "MOST_RESTARTS=1")
    assert "errors: 0" in check(tmp_path / "bounded", *small, compiler=LIVE, search="-a -f")
    said = check(tmp_path / "unbounded", *small, "NO_BOUND", compiler=LIVE, search="-a -f")
    assert "acceptance cycle" in said
    assert "errors: 1" in said


@pytest.mark.parametrize("switch", SAFEGUARDS)
def test_without_its_safeguard_a_property_fails(switch: str, tmp_path: Path) -> None:
    said = check(tmp_path, switch)
    (line,) = [line for line in said.splitlines() if "violated" in line]
    assert SAFEGUARDS[switch] in line.replace("(", "").replace(")", "") or SAFEGUARDS[switch] in line, line


def fits(folder: Path, events: Sequence[Event], num_steps: int) -> bool:
    """Tell whether the model can do what was seen of a real run, in this order, and nothing else in between."""
    folder.mkdir(exist_ok=True)
    lines = [f"    event ? {NUMBERS[what]}, {number};\n" for what, number in events]
    (folder / "observed.pml").write_text("".join(lines))
    restarts = max(1, sum(what == "STARTS" for what, _ in events))
    said = check(
        folder, "TRACE", f"STEPS={num_steps}", f"MOST_RESTARTS={restarts}", compiler=("-O0", "-DSAFETY"), search="-E"
    )
    return "assertion violated 0" in said


NUM_STEPS = 3
# Stops and resumes: what was seen of a run that was stopped after step 1, killed, resumed, and then finished.
POSSIBLE: list[Event] = [("STARTS", 0), ("ENDS", 5), ("HOLDS", 1), ("STARTS", 1), ("ENDS", 9), ("HOLDS", 2),
                         ("STARTS", 2), ("ENDS", 0), ("HOLDS", 3)]  # fmt: skip
IMPOSSIBLE: dict[str, list[Event]] = {
    "a checkpoint is lost by a kill": [("STARTS", 0), ("ENDS", 5), ("HOLDS", 2), ("STARTS", 1)],
    "a stop without a checkpoint": [("STARTS", 0), ("ENDS", 5), ("HOLDS", 0)],
    "a finished run without its last one": [("STARTS", 0), ("ENDS", 0), ("HOLDS", 2)],
    "a start after the end": [("STARTS", 0), ("ENDS", 0), ("HOLDS", 3), ("STARTS", 3)],
}


def test_the_model_tells_possible_traces_from_impossible_ones(tmp_path: Path) -> None:
    assert fits(tmp_path / "possible", POSSIBLE, NUM_STEPS)
    for number, events in enumerate(IMPOSSIBLE.values()):
        assert not fits(tmp_path / f"impossible-{number}", events, NUM_STEPS), events


KILLED_AFTER = """
import os, signal, sys
from mpitrain.cli.main import main
from mpitrain.train.checkpoint import store
saves, most, where = 0, int(sys.argv[1]), sys.argv[2]
original = getattr(store, where)
def killing(*arguments):
    global saves
    saves += where == "write_durably" or "tensors" in str(arguments[0])
    if saves > most: os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)
setattr(store, where, killing)
sys.exit(main(sys.argv[3:]))
"""


def test_traces_of_real_faulted_runs_fit_the_model(small_history: Path, tmp_path: Path) -> None:
    """Killed before a commit, killed before the data, stopped, and finished; each start is a real process."""
    (tmp_path / "killed.py").write_text(KILLED_AFTER)
    settings = [f"data.data_path={small_history}", f"training.epochs={NUM_STEPS}", "training.save_interval=1"]
    settings += ["training.global_batch_size=full", "data.validation_split=0"]
    run, events = tmp_path / "run", []
    for number, words in enumerate((["1", "write_durably"], ["0", "write_and_sync"], [], [])):
        held = newest_step(run)
        more = ["--resume"] if number and held else ["--overwrite"]
        more.append(f"training.max_steps={2 if number == 2 else 'null'}")
        done = (
            train(None, run, *settings, *more) if not words else start_killed(tmp_path, words, run, [*settings, *more])
        )
        events += [
            ("STARTS", held),
            ("ENDS", 9 if done.returncode < 0 else done.returncode),
            ("HOLDS", newest_step(run)),
        ]
    assert events == [("STARTS", 0), ("ENDS", 9), ("HOLDS", 1), ("STARTS", 1), ("ENDS", 9), ("HOLDS", 1),
                      ("STARTS", 1), ("ENDS", 5), ("HOLDS", 2), ("STARTS", 2), ("ENDS", 0), ("HOLDS", 3)]  # fmt: skip
    assert fits(tmp_path / "model", events, NUM_STEPS)
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]


def start_killed(folder: Path, words: list[str], run: Path, settings: list[str]) -> Finished:
    return launch([str(folder / "killed.py"), *words, "train", f"output.model_dir={run}", *settings])


def newest_step(run: Path) -> int:
    from mpitrain.errors import CheckpointError
    from mpitrain.train.checkpoint.store import CheckpointStore

    try:
        return int(CheckpointStore(run / "checkpoints").load_latest()[0].state["global_step"])
    except CheckpointError:
        return 0
