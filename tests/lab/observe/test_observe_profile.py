"""`training.profile_training`: what the profile shows of a step that torch does not see, and where it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Finished, train

PROFILED_STEPS = 10


def names_of(profile: Path) -> list[str]:
    return [event["name"] for event in json.loads(profile.read_text())["traceEvents"] if event.get("ph") == "X"]


def run(folder: Path, history: Path, num_ranks: int | None, *settings: str) -> Finished:
    done = train(
        num_ranks, folder, f"data.data_path={history}", "training.epochs=1", "training.global_batch_size=16", *settings
    )
    assert done.returncode == 0, done.stderr
    return done


def hash_of(done: Finished) -> str:
    return next(line for line in done.stdout.splitlines() if line.startswith("Weights"))


def test_the_compiled_step_and_its_allreduce_are_named_and_give_the_same_bits(
    tmp_path: Path, small_history: Path
) -> None:
    done = run(tmp_path / "run", small_history, 2, "training.profile_training=true")
    names = names_of(tmp_path / "run" / "profile.json")
    for words in (
        r"forward and backward, 1 microbatch \(compiled\)",
        r"Allreduce of 0\.592 KB \(the node's shared memory, reduction fixed\)",
        r"adam \(compiled\)",
    ):
        assert len([name for name in names if re.fullmatch(words, name)]) == PROFILED_STEPS
    assert f"Profile  {tmp_path / 'run' / 'profile.json'} " in done.stdout
    assert "warning" not in done.stderr
    assert "profiler_start" not in done.stderr
    plain = run(tmp_path / "plain", small_history, None)
    assert hash_of(plain) == hash_of(done)
    assert "Profile" not in plain.stdout


def test_other_engines_messages_are_named_and_a_short_run_says_what_is_missing(
    tmp_path: Path, small_history: Path
) -> None:
    settings = ("training.engine=eager", "training.profile_training=true", "training.reduction=any")
    run(tmp_path / "run", small_history, 2, *settings)
    names = names_of(tmp_path / "run" / "profile.json")
    assert names.count("Allreduce of 0.592 KB (mpi, reduction any)") == PROFILED_STEPS
    short = run(tmp_path / "short", small_history, None, *settings, "training.global_batch_size=full")
    assert "profile.json: not written: it needs at least 17 steps" in short.stderr
    assert "Profile" not in short.stdout
