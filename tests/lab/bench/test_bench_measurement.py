"""Samples, their order and their figures; the flags' words; what collectives must leave behind."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from mpitrain.bench.collective_kinds import KINDS, own_values
from mpitrain.bench.measurement import (
    MOST_CALLS,
    SINGLE_CALLS,
    Candidate,
    CollectiveClock,
    Plan,
    calls_for,
    measure_interleaved,
)
from mpitrain.bench.output import check_writable, format_bytes, render_table, write_json
from mpitrain.cli.bench.collectives import COLLECTIVES, names_of, num_bytes
from mpitrain.errors import OutputError


def test_candidates_take_turns_and_each_round_begins_with_another():
    calls: list[str] = []
    candidates = {name: Candidate(lambda name=name: calls.append(name)) for name in "abc"}
    timings = measure_interleaved(candidates, Plan(num_rounds=3, warm_up_rounds=1, sample_s=0.0), CollectiveClock())
    assert "".join(calls) == "abc" * SINGLE_CALLS + "abc" + "bca" + "cab" + "abc"
    assert {name: len(timing.samples_s) for name, timing in timings.items()} == dict.fromkeys("abc", 3)


def test_every_rank_reports_the_slowest_and_makes_as_many_calls():
    finished = []
    ranks = CollectiveClock(slowest=lambda values: [max(value, 0.5) for value in values])
    candidate = Candidate(lambda: None, lambda: finished.append(1))
    timing = measure_interleaved({"a": candidate}, Plan(2, 0, sample_s=2.0), ranks)["a"]
    assert timing.samples_s == (0.5, 0.5)
    assert (timing.median_s, timing.first_call_s, timing.calls_per_sample) == (0.5, 0.5, 4)
    assert len(finished) == SINGLE_CALLS + 2


@pytest.mark.parametrize(("once_s", "number"), [(1.0, 1), (0.0004, 10), (0.0, MOST_CALLS)])
def test_calls_that_fill_a_sample(once_s, number):
    assert calls_for(0.004, once_s) == number


@pytest.mark.parametrize(
    ("text", "number"), [("4", 4), ("64K", 65536), ("16M", 1 << 24), ("1g", 1 << 30), ("2KiB", 2048)]
)
def test_sizes(text, number):
    assert num_bytes(text) == number


@pytest.mark.parametrize("text", ["0", "x", "4T", "-1", "1.5K", ""])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 4, 64K or 16M"):
        num_bytes(text)


def test_lists_of_names():
    read = names_of(COLLECTIVES)
    assert read("all") == COLLECTIVES
    assert read("broadcast,all_reduce") == ("all_reduce", "broadcast")
    with pytest.raises(argparse.ArgumentTypeError, match="'allreduce': unknown; allowed are all_reduce"):
        read("allreduce")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_expected_values_are_what_the_collective_does(name, size):
    kind = KINDS[name]
    n = kind.num_values(40_000, size)
    sent = [kind.sent(n, size, rank).double() for rank in range(size)]
    total, parts = sum(sent), [tensor.chunk(size) for tensor in sent]
    done = {
        "all_reduce": lambda rank: total,
        "broadcast": lambda rank: sent[0],
        "all_gather": lambda rank: torch.cat(sent),
        "reduce_scatter": lambda rank: total.chunk(size)[rank],
        "all_to_all": lambda rank: torch.cat([parts[source][rank] for source in range(size)]),
        "exchange": lambda rank: sent[rank - 1],
    }
    for rank in range(size):
        assert torch.equal(kind.expected(n, size, rank).double(), done[name](rank))
    assert (own_values(size, torch.arange(n)) > 0).all(), "0 and the mark of unwritten values mean nothing"


@pytest.mark.parametrize(
    ("name", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)],
)
def test_bus_factors_of_four_ranks(name, factor):
    assert KINDS[name].bus_factor(4) == factor


def test_tables_and_files(tmp_path: Path):
    lines = render_table("title", ("name", "us"), [("a", "1.0"), ("[b]", "20.0")]).splitlines()
    assert lines[0] == "title"
    assert [line.split() for line in lines if "." in line] == [["a", "1.0"], ["[b]", "20.0"]]
    assert lines[-1].endswith("20.0")
    assert [format_bytes(number) for number in (4, 4092, 65536, 1 << 24, 3 << 30)] == [
        "4 B", "4092 B", "64 KiB", "16 MiB", "3 GiB",
    ]  # fmt: skip
    write_json(tmp_path / "a.json", {"a": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    check_writable(tmp_path / "b.json", "--json", overwrite=False)
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "none" / "b.json", "no folder")):
        with pytest.raises(OutputError, match=words):
            check_writable(path, "--json", overwrite=False)
