"""What takes long at the start is said, once, and what is quick is not."""

from __future__ import annotations

import time

from conftest import TIMEOUT_S

from mpitrain.cluster.starting import REPORTED_AFTER_S, Starting, said_after_s


def wait_for(lines: list[str], count: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(lines) < count and time.monotonic() < deadline_s:
        time.sleep(0.005)


def test_what_takes_long_is_said_once_and_its_time_kept() -> None:
    lines: list[str] = []
    starting = Starting(lines.append, after_s=0.02)
    starting.now("reading the samples")
    wait_for(lines, 1)
    starting.now("building the network")
    wait_for(lines, 2)
    starting.done()
    assert lines == ["starting: reading the samples ...", "starting: building the network ..."]
    assert [what for what, _ in starting.times] == ["reading the samples", "building the network"]
    assert all(seconds >= 0.02 for _, seconds in starting.times)


def test_what_is_quick_is_not_said() -> None:
    lines: list[str] = []
    starting = Starting(lines.append, after_s=60)
    for what in ("one", "two"):
        starting.now(what)
    starting.done()
    assert lines == []


def test_other_ranks_only_keep_the_times() -> None:
    starting = Starting()
    starting.now("one")
    starting.done()
    starting.done()
    assert [what for what, _ in starting.times] == ["one"]


def test_how_long_a_start_may_be_silent_is_the_users_choice() -> None:
    assert said_after_s({}) == REPORTED_AFTER_S
    assert said_after_s({"MPITRAIN_STARTING_AFTER_S": "30"}) == 30
    assert said_after_s({"MPITRAIN_STARTING_AFTER_S": "soon"}) == REPORTED_AFTER_S
