"""The doctor finds a clock that is ahead or behind, by how much, and on which rank."""

from __future__ import annotations

import threading
import time

import pytest
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.comm.probes.measurements import ClockReading, measure_clocks
from mpitrain.doctor import network
from mpitrain.doctor.network import check_clocks


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Each rank's own clock: `ahead_s` of its thread, in seconds."""
    own = threading.local()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + getattr(own, "ahead_s", 0.0))
    return own


@pytest.mark.parametrize(("ahead_s", "other_ahead_s"), [(0.0, 50.0), (0.0, -50.0), (20.0, 50.0)])
def test_the_offset_is_how_far_the_other_clock_is_ahead(
    clocks: threading.local, ahead_s: float, other_ahead_s: float
) -> None:
    def body(communicator):
        clocks.ahead_s = (ahead_s, other_ahead_s)[communicator.rank]
        return measure_clocks(communicator)

    first, second = on_played_ranks(2, body)
    assert first == second
    own, other = first
    assert (own.offset_s, own.uncertainty_s) == (0.0, 0.0)
    assert other.uncertainty_s > 0.0
    # The message took no longer than this: the clock was read in between.
    assert abs(other.offset_s - (other_ahead_s - ahead_s)) <= other.uncertainty_s + 1e-3


def test_the_uncertainty_is_half_of_the_way_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.local()

    def now() -> float:
        """Rank 0 reads its clock 0.2 s apart, before and after each message; the other is 5 s ahead, in between."""
        own.calls = getattr(own, "calls", -1) + 1
        return 0.2 * own.calls if own.rank == 0 else 5.1 + 0.4 * own.calls

    def body(communicator):
        own.rank = communicator.rank
        return measure_clocks(communicator)

    monkeypatch.setattr(time, "time", now)
    _, other = on_played_ranks(2, body)[0]
    assert (other.offset_s, other.uncertainty_s) == (pytest.approx(5.0), pytest.approx(0.1))


@pytest.mark.parametrize(("ahead_s", "status"), [(0.0, "pass"), (600.0, "warn"), (-600.0, "warn")])
def test_a_clock_that_is_far_off_is_named_with_what_to_do(clocks: threading.local, ahead_s: float, status: str) -> None:
    def body(communicator):
        clocks.ahead_s = ahead_s * communicator.rank
        return check_clocks(played_ranks_of(communicator))

    for found in on_played_ranks(2, body):
        assert found.status == status
        assert found.found.startswith("rank 1 on ")
        assert ("set the clock of" in (found.fix or "")) == (status == "warn")
        assert ahead_s == 0.0 or f"{ahead_s * 1e3:+.0f}"[:4] in found.found


@pytest.mark.parametrize(("uncertainty_s", "status"), [(0.9, "warn"), (1.1, "pass")])
def test_a_second_that_no_slow_message_explains_is_told(
    monkeypatch: pytest.MonkeyPatch, uncertainty_s: float, status: str
) -> None:
    readings = [ClockReading(0.0, 0.0), ClockReading(-2.0, uncertainty_s)]
    monkeypatch.setattr(network, "measure_clocks", lambda communicator: readings)
    found = on_played_ranks(2, lambda communicator: check_clocks(played_ranks_of(communicator)))
    assert [one.status for one in found] == [status] * 2
    assert found[0].found.endswith(f" is -2000.0 ms off rank 0, +-{1e3 * uncertainty_s:.1f}")


@pytest.mark.parametrize("offsets_s", [(0.0, -9.0, 4.0), (0.0, 4.0, -9.0)])
def test_of_several_clocks_the_one_that_is_furthest_off_is_named(
    monkeypatch: pytest.MonkeyPatch, offsets_s: tuple[float, ...]
) -> None:
    readings = [ClockReading(offset_s, 0.5) for offset_s in offsets_s]
    assert named_of(readings, monkeypatch) == {offsets_s.index(-9.0)}


def test_a_clock_that_may_be_right_is_not_named_before_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_of([ClockReading(0.0, 0.0), ClockReading(-9.0, 8.5), ClockReading(4.0, 0.5)], monkeypatch) == {2}


def named_of(readings: list[ClockReading], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ranks whose clock the ranks name, where these are the readings."""
    monkeypatch.setattr(network, "measure_clocks", lambda communicator: readings)
    found = on_played_ranks(len(readings), lambda communicator: check_clocks(played_ranks_of(communicator)))
    return {int(one.found.split()[1]) for one in found}


def test_one_rank_has_no_other_clock() -> None:
    (found,) = on_played_ranks(1, lambda communicator: check_clocks(played_ranks_of(communicator)))
    assert (found.status, found.found) == ("pass", "one rank")
