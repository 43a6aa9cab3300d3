"""Launches in the folder of one that runs: refused in one line, and nothing of the first is lost; then it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from job_processes import start_training
from many_runs import run_many

from mpitrain.train.checkpoint.store import CheckpointStore
from mpitrain.train.run_folder import RunFolder

SMALL = ("model.name=mlp", "model.hidden_size=4", "training.engine=eager", "training.save_interval=1")
ENDLESS, MORE_EPOCHS = "training.epochs=1000000", "training.epochs=1000001"


def test_a_folder_in_use_is_left_alone_and_a_killed_launch_is_followed(small_history: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", (f"data.data_path={small_history}", *SMALL)
    first = start_training(1, run, [*settings, ENDLESS])
    first.wait_for(lambda: any(run.glob("checkpoints/*/commit.json")))
    before = (run / "config.yaml").read_bytes()
    start = ["train", f"output.model_dir={run}", *settings, "training.epochs=1"]
    others = [
        start,
        [*start, "--overwrite"],
        [*start, "--overwrite", "--take-over"],
        [*start, "--overwrite", "variables.input_variables=[no_such_variable]"],
        ["train", "--resume", str(run), "training.max_steps=1", MORE_EPOCHS],
        ["ensemble", *start[1:], "--members", "2"],
    ]
    for words, outcome in zip(others, run_many(tmp_path / "logs", None, others), strict=True):
        assert outcome.codes == [2], words
        (line,) = outcome.our_lines
        assert f"{run}: in use by process {first.pid_of_rank(0)} on {os.uname().nodename} since " in line, words
    assert (run / "config.yaml").read_bytes() == before
    assert len(list(run.glob(".claim-*"))) == 1

    os.kill(first.pid_of_rank(0), signal.SIGKILL)
    assert first.wait().returncode != 0
    (again,) = run_many(
        tmp_path / "again", None, [["train", "--resume", str(run), "training.max_steps=1", MORE_EPOCHS]]
    )
    assert again.codes == [5], again.stderr
    checkpoint, notices = CheckpointStore(run / "checkpoints").load_latest()
    # The kill may have met the writing of a checkpoint; what is told of is nothing else.
    assert [notice for notice in notices if "was never finished (commit.json: No such file" not in notice] == []
    assert RunFolder(run).note_of_another_run(checkpoint.path, checkpoint.state["run"]) is None
    assert list(run.glob(".claim-*")) == []
