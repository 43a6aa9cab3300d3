"""Ranks that have drifted apart end the run before anything of it is saved, and the rank at fault is named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TESTS, Finished, launch
from planted_faults.bit_flips import BitFlip, flip_bit, plant_bit_flip
from played_ranks import PlayedCommunicator, on_played_ranks, played_ranks_of
from played_runs import MLP, Run, runs

from mpitrain.cluster.cpu.identity import CpuIdentity
from mpitrain.errors import TrainingError
from mpitrain.train import drift
from mpitrain.train.drift import DriftWatch, RankState, describe_drift
from mpitrain.train.engines.agreement import NUM_COLUMNS, are_equal, columns_of
from mpitrain.train.engines.weights_digest import CrcOfWeights

NUM_ENGINES = 6
PROGRAM = Path(__file__).with_name("flip_program.py")


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What became of runs on 3 ranks, each with one bit flipped: 1000 with --full."""
    results = tmp_path_factory.mktemp("flips") / "results.json"
    an_engine = -(-1000 // NUM_ENGINES) if request.config.getoption("--full") else 2
    done = launch([str(PROGRAM), str(results), str(an_engine), "1"], 3)
    assert done.returncode == 0, done.stderr
    facts: list[dict[str, Any]] = json.loads(results.read_text())
    assert len(facts) == an_engine * NUM_ENGINES
    return facts


@pytest.mark.lab
def test_a_flipped_bit_is_noticed_or_without_effect(flips: list[dict[str, Any]]) -> None:
    for fact in flips:
        flip, expected, messages = fact["flip"], fact["expected"], {rank["error"] for rank in fact["ranks"]}
        (message,) = messages  # the same on all ranks
        for rank in fact["ranks"]:
            saved = {name: value for name, value in rank["saved"].items() if name != "end"}
            assert saved == {name: expected[name] for name in saved}, f"{flip} was saved: {message}"
        if message is None:
            assert all(rank["saved"] == expected for rank in fact["ranks"]), f"{flip} was not noticed"
        else:
            check_message(message, flip, fact["names"][flip["parameter"]])


def check_message(message: str, flip: dict[str, Any], parameter: str) -> None:
    assert message.startswith(f"rank {flip['rank']} on "), (flip, message)
    assert "has drifted apart from the other 2 ranks: " in message
    found = re.search(r"in steps (\d+) to (\d+);", message)
    assert found, message
    assert int(found[1]) <= flip["num_steps"] + 1 <= int(found[2]), (flip, message)
    # A NaN has made all weights NaN on all ranks: only the weights at the start of the steps show it then.
    assert parameter in message or "the weights differed for a time only" in message, (flip, message)


@pytest.mark.lab
def test_most_flips_are_noticed(flips: list[dict[str, Any]]) -> None:
    noticed = [fact for fact in flips if fact["ranks"][0]["error"] is not None]
    assert len(noticed) > 0.8 * len(flips)
    assert {fact["engine"] for fact in noticed} == {fact["engine"] for fact in flips}


WITH_FLIP = (
    f"TESTS = {str(TESTS)!r}"
    + """
import sys
from mpitrain.cli.main import main
from mpitrain.train.trainer import Trainer
sys.path.insert(0, TESTS)
from planted_faults.bit_flips import BitFlip, plant_bit_flip

fit = Trainer.fit
def fit_with_flip(self):
    plant_bit_flip(BitFlip(1, 20, 0, "weight", 5, 3), self._ranks.rank, self._engine)
    fit(self)
Trainer.fit = fit_with_flip
sys.exit(main(sys.argv[1:]))
"""
)


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> tuple[Finished, Path]:
    """A run of the command in which the lowest but three bits of a weight flips on rank 1 of 3, in the third epoch."""
    folder = tmp_path_factory.mktemp("drifted") / "run"
    settings = [f"data.data_path={small_history}", "training.epochs=6", "training.save_interval=2"]
    return launch(["-c", WITH_FLIP, "train", f"output.model_dir={folder}", *settings], 3), folder


def test_the_command_ends_with_one_line(drifted: tuple[Finished, Path]) -> None:
    done, _ = drifted
    assert done.returncode == 4, done.stderr
    (line,) = done.our_lines
    assert re.match(
        r"mpitrain: error: rank 1 on \S+ has drifted apart from the other 2 ranks: model\.fc1\.weight .*differ", line
    )
    steps = re.search(r"in steps (\d+) to (\d+)", line)
    assert steps, done.our_lines
    assert int(steps[1]) <= 21 <= int(steps[2])


def test_nothing_of_it_is_saved(drifted: tuple[Finished, Path]) -> None:
    _, folder = drifted
    steps = [int(path.name.partition("-")[2]) for path in (folder / "checkpoints").glob("step-*")]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == next(record["step"] for record in records if record["epoch"] == 2)
    assert not (folder / "model.pt").exists()


@pytest.mark.lab
@pytest.mark.parametrize("engine", ["compiled", "eager", "traced"])
def test_a_difference_that_has_gone_again_is_noticed(engine: str) -> None:
    """The gradient that all ranks share was wrong for a step."""

    def with_passing_flip(run: Run, flips: bool) -> Iterator[bool]:
        run.engine.start_epoch(0)
        _, weight = next(iter(run.model.named_parameters()))
        weight = weight.detach() if isinstance(weight, torch.Tensor) else weight
        run.engine.take_steps(0, 1, 0.0, False)
        for _ in range(2):
            if flips and run.ranks.rank == 1:
                flip_bit(weight, 3, 0)
            run.engine.take_steps(1, 1, 0.0, False)  # learning rate 0: the weights stay
        if flips:
            assert len(set(run.ranks.gather_object(run.sha256()))) == 1
        run.engine.epoch_loss()
        yield run.engine.has_drifted

    for flips in (False, True):
        found = runs(
            2, *MLP, f"training.engine={engine}", what=lambda run, flips=flips: next(with_passing_flip(run, flips))
        )
        assert found == [flips, flips]


def test_numbers_are_equal_or_not_on_all_ranks() -> None:
    same = np.sum([columns_of(2**64 - 1)] * 8192, axis=0).tolist()
    assert len(same) == NUM_COLUMNS
    assert are_equal(same, 8192)
    for bit in range(64):
        rows = [columns_of(2**64 - 1)] * 8191 + [columns_of(2**64 - 1 ^ 1 << bit)]
        assert not are_equal(np.sum(rows, axis=0).tolist(), 8192), bit
    # Differences that cancel in the sum.
    assert not are_equal(np.sum([columns_of(number) for number in (5, 7, 6)], axis=0).tolist(), 3)


@pytest.mark.lab
def test_every_bit_of_many_weights_counts_in_turn() -> None:
    weights = [torch.zeros(20000), torch.zeros(3, 5), torch.zeros(30000)]
    rounds = 4  # as many parts
    for tensor, element, bit in ((0, 0, 0), (0, 19999, 31), (1, 14, 5), (2, 0, 7), (2, 29999, 30)):
        values = []
        for flips in (False, True):
            if flips:
                flip_bit(weights[tensor], element, bit)
            digest = CrcOfWeights(weights)
            for _ in range(rounds):
                digest.add_in_step()
            values.append(digest.value)
        assert values[0] != values[1]


def test_within_a_long_epoch_weights_are_compared_after_so_many_steps() -> None:
    """After 1024 steps, and 1024 after that comparison: a message of each rank, and none between."""

    def steps_of_messages(communicator: PlayedCommunicator) -> list[int]:
        ranks, seen = played_ranks_of(communicator), list[int]()
        gather = ranks.gather_object
        ranks.gather_object = lambda value: seen.append(step) or gather(value)  # type: ignore[method-assign]
        digest = SimpleNamespace(value=5)
        engine: Any = SimpleNamespace(has_drifted=False, shares_running_statistics=False, weights_digest=digest)
        watch = DriftWatch(ranks, torch.nn.Linear(1, 1), engine)
        watch.begin(10)
        for step in (11, 1033, 1034, 1035, 2057, 2058, 2059, 9999):
            watch.after_steps(step)
        watch.after_epoch(10_000)
        for step in (11_023, 11_024):
            watch.after_steps(step)
        return seen

    assert on_played_ranks(2, steps_of_messages) == [[1034, 2058, 9999, 11_024]] * 2
    assert on_played_ranks(1, steps_of_messages) == [[]]


def test_what_differs_within_a_long_epoch_ends_the_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "STEPS_BETWEEN_MESSAGES", 2)

    def told(run: Run) -> tuple[int, str]:
        run.trainer._one_by_one = True  # else all steps of so short an epoch are taken at once
        plant_bit_flip(BitFlip(1, 2, 0, "weight", 5, 3), run.ranks.rank, run.engine)
        with pytest.raises(TrainingError, match=r"\Arank 0 on .* and rank 1 on .* have drifted apart") as caught:
            run.fit()
        return run.trainer.state.global_step, str(caught.value)

    # Of eight steps: seen to be the same after two of them, the next two begin with weights that differ.
    settings = ("training.engine=eager", "training.global_batch_size=16", "training.epochs=1")
    for steps, words in runs(2, *MLP, *settings, what=told):
        assert steps == 4
        assert "in steps 3 to 4; " in words


def state(rank: int, weight: str, moment: str = "0", digest: int = 0) -> RankState:
    return RankState(rank, f"n{rank}", (digest, weight + moment), {"model.a": weight, "optimizer.a.exp_avg": moment})


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([state(0, "x"), state(1, "y")],
         "rank 0 on n0 and rank 1 on n1 have drifted apart, and one of the two is wrong: model.a differs, "),
        ([state(0, "x", "1"), state(1, "y"), state(2, "y")],
         "rank 0 on n0 has drifted apart from the other 2 ranks: model.a and 1 more differ, "),
        ([state(0, "y"), state(1, "y"), state(2, "y"), state(3, "y", "2"), state(4, "y", "1")],
         "rank 3 on n3, rank 4 on n4 have drifted apart from the other 3 ranks: optimizer.a.exp_avg differs, "),
        ([state(0, "y"), state(1, "y"), state(2, "y", digest=9)],
         "rank 2 on n2 has drifted apart from the other 2 ranks: the weights differed for a time only, "),
        ([state(0, "a"), state(1, "b"), state(2, "c")],
         "rank 0 on n0 and rank 1 on n1, rank 2 on n2 have drifted apart, and one of these 3 is wrong: model.a "),
    ],
)  # fmt: skip
def test_who_is_named(states: list[RankState], message: str) -> None:
    said = describe_drift(states, "in steps 1 to 9")
    assert said.startswith(message)
    assert "in steps 1 to 9; " in said
    assert "\n" not in said


XEON = CpuIdentity("x86_64", "GenuineIntel", 6, 85, "Xeon", ("avx2", "avx512f"))
EPYC = CpuIdentity("x86_64", "AuthenticAMD", 25, 1, "EPYC 7763", ("avx2",))


def test_a_run_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([XEON, EPYC, XEON, XEON])
    monkeypatch.setattr("mpitrain.train.choose_engine.detect_cpu", lambda: next(seen))

    def notices(run: Run) -> list[str]:
        return [line for line in run.parts.notices if "several kinds of CPU" in line]

    for of_rank in runs(2, *MLP, "training.engine=eager", what=notices):
        (line,) = of_rank
        assert "training.engine=eager guarantees the same bits on one kind only" in line
        assert EPYC.name in line
    assert runs(2, *MLP, "training.engine=eager", what=notices) == [[], []]
