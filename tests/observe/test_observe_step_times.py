"""Where the time of a step goes: the arithmetic, and delays of known length on one rank, found with rank and cause."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import launch

from mpitrain.observe.report import render_timing
from mpitrain.observe.step_times import (
    RankTimes,
    StepTiming,
    describe_memory,
    describe_now,
    describe_slowest,
    describe_step,
    describe_timing,
    gpu_use,
    timing_of,
    timing_record,
)

DELAY_MS = 40


def timing(*spent: RankTimes, nodes: tuple[int, ...] | None = None) -> StepTiming:
    nodes = nodes or (0,) * len(spent)
    return timing_of(spent, 64, [100.0] * len(spent), [None] * len(spent), [f"n{node}" for node in nodes], nodes)


# Ten steps of 10 s: rank 1 computes 4 s a step longer, and the others wait for it in their messages of 1 s.
SLOW_COMPUTING = timing(RankTimes(10, 100.0, messages=50.0), RankTimes(10, 100.0, messages=10.0))


def test_of_a_library_s_messages_the_least_is_the_message_and_the_rest_is_waiting() -> None:
    assert SLOW_COMPUTING.seconds["communicating"] == (1.0, 1.0)
    assert SLOW_COMPUTING.seconds["waiting"] == (4.0, 0.0)
    assert SLOW_COMPUTING.seconds["computing"] == (5.0, 9.0)
    assert (SLOW_COMPUTING.step_s, SLOW_COMPUTING.samples_per_s) == (10.0, 6.4)
    slowest = SLOW_COMPUTING.slowest
    assert slowest is not None
    assert (slowest.rank, slowest.cause, slowest.behind_s, slowest.share) == (1, "computing", 4.0, 0.4)


def test_what_the_engine_measures_itself_is_taken_as_it_is() -> None:
    found = timing(
        RankTimes(10, 100.0, reading=5.0, waiting=30.0, adding=1.0), RankTimes(10, 100.0, reading=35.0, adding=1.0)
    )
    slowest = found.slowest
    assert slowest is not None
    assert (slowest.rank, slowest.cause, slowest.behind_s) == (1, "reading", 3.0)
    assert found.seconds["computing"] == pytest.approx((6.4, 6.4))
    assert found.slowest_node is None


def test_the_slowest_node_is_where_least_is_waited() -> None:
    spent = [RankTimes(10, 100.0, waiting=waiting) for waiting in (20.0, 30.0, 5.0, 0.0)]
    assert timing(*spent, nodes=(0, 0, 1, 1)).slowest_node == 1


def test_one_rank_waits_for_nobody() -> None:
    alone = timing(RankTimes(10, 100.0))
    assert (alone.slowest, alone.seconds["waiting"], describe_slowest(alone)) == (None, (0.0,), "")


def test_in_words() -> None:
    assert describe_slowest(SLOW_COMPUTING) == "rank 1 on n0 is slow in computing (40 % of the step)"
    assert describe_timing(SLOW_COMPUTING) == (
        "10 s a step, 6 samples/s: computing 70 %, communicating 10 %, waiting 20 %"
    )
    even = timing(RankTimes(10, 100.0, waiting=5.0), RankTimes(10, 100.0, waiting=4.0))
    assert describe_slowest(even) == ""
    assert describe_now(even) == "6 samples/s  waiting 4 %  100 MiB a rank"
    two_nodes = timing(RankTimes(10, 100.0, waiting=50.0), RankTimes(10, 100.0), nodes=(0, 1))
    assert describe_slowest(two_nodes) == "rank 1 on n1 is slow in computing (50 % of the step); node 1 is the slowest"
    assert "Node 1 is the slowest." in render_timing(timing_record(two_nodes))
    assert [describe_step(seconds) for seconds in (2.312e-6, 0.0451, 1.234)] == ["2.31 us", "45.1 ms", "1.23 s"]


def test_the_record_lists_up_to_64_ranks_and_the_report_shows_them() -> None:
    record = timing_record(SLOW_COMPUTING)
    assert record["ranks"]["waiting"] == [4.0, 0.0]
    assert record["slowest"] == {
        "rank": 1, "host": "n0", "node": 0, "cause": "computing", "behind_s": 4.0, "share": 0.4
    }  # fmt: skip
    assert json.loads(json.dumps(record)) == record
    assert "Rank 1 on n0 is slow in computing: the others wait 4 s a step for it (40 %)." in render_timing(record)
    many = timing_record(timing(*[RankTimes(10, 100.0, waiting=float(n)) for n in range(65)]))
    assert many["ranks"]["waiting"] == {"least": 0.0, "median": 3.2, "most": 6.4}
    assert "<td>median</td>" in render_timing(many)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    program = Path(__file__).with_name("planted_delays.py")
    done = launch([str(program), str(small_history), str(folder), str(DELAY_MS)], 2)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.lab
@pytest.mark.parametrize("cause", ["computing", "reading", "communicating"])
def test_a_planted_delay_is_attributed_to_its_rank_and_cause(planted: Path, cause: str) -> None:
    records = [json.loads(line) for line in (planted / cause / "metrics.jsonl").read_text().splitlines()]
    found = records[-1]["timing"]
    assert (found["slowest"]["rank"], found["slowest"]["cause"]) == (1, cause)
    # Other programs make times longer; they do not shorten a sleep, nor make the parts more than the whole.
    ranks, delay_s = found["ranks"], DELAY_MS / 1e3
    fast_s, slow_s = ranks[cause]
    assert slow_s >= delay_s
    assert min(slow_s - fast_s, ranks["waiting"][0]) > delay_s / 2
    parts = [sum(ranks[kind][rank] for kind in found["shares"]) for rank in (0, 1)]
    assert max(parts) < 1.25 * found["step_s"]  # the kernel measures its message in one step of 16
    assert found["steps"] * found["step_s"] <= sum(record["wall_time_s"] for record in records)
    assert "slow in" in (planted / cause / "report.html").read_text()


def test_gpus_are_told_where_there_are_any_and_nowhere_else() -> None:
    gpu = {"memory_mib": 10.0, "most_memory_mib": 2048.0, "total_memory_mib": 80000.0}
    spent = [RankTimes(10, 100.0, waiting=5.0), RankTimes(10, 100.0)]
    on_gpus = timing_of(spent, 64, [100.0] * 2, [gpu | {"use_percent": 87.0}, gpu], ["a", "a"], [0, 0])
    assert describe_memory(on_gpus) == "100 MiB a rank, GPU 87 % busy, 2,048 of 80,000 MiB"
    record = timing_record(on_gpus)
    assert record["gpus"][1] == gpu
    assert "<td>87 % busy, 2,048 of 80,000 MiB</td>" in render_timing(record)
    assert "<td>2,048 of 80,000 MiB</td>" in render_timing(record)
    assert gpu_use(torch.device("cpu")) is None
    assert "GPU" not in render_timing(timing_record(SLOW_COMPUTING)) + describe_memory(SLOW_COMPUTING)
    assert describe_memory(replace(SLOW_COMPUTING, memory_mib=(100.0, 300.0, 200.0))) == "300 MiB a rank"
