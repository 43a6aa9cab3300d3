"""A rank that does not arrive is named with its host and its step, and every process of the job is gone soon after."""

from __future__ import annotations

from pathlib import Path

import pytest
from stalls import HOST, IN_EXCHANGE, STEP, check_stall

from mpitrain.comm.watch.notes import CollectiveNotes, noted
from mpitrain.comm.watch.stall_report import Position, describe_stall, render_positions

ASLEEP = (
    "asleep",
    1,
    rf"{IN_EXCHANGE} for rank 1 on {HOST}, which is busy in linger \(stalling.py:\d+\) at step {STEP}; ",
)


@pytest.mark.mpi(ranks=4)
def test_a_rank_that_does_not_arrive_is_named_and_all_end(small_history: Path, tmp_path: Path) -> None:
    check_stall(small_history, tmp_path, *ASLEEP)


def position(rank: int, collective: str | None, count: int = 7, silent_s: float | None = None) -> Position:
    return Position(rank, f"n{rank}", count, collective, 3, "" if collective else "read (file.py:9)", silent_s)


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([position(0, "barrier"), position(1, None)],
         "for rank 1 on n1, which is busy in read (file.py:9) at step 3; raise distributed.timeout_s"),
        ([position(0, "barrier"), position(1, "barrier", 6, 9.0)],
         "for rank 1 on n1, which has not answered for 9 s, last seen at step 3, in barrier; see whether"),
        ([position(0, "barrier"), position(1, "barrier")],
         "in which all 2 ranks are: the network between their hosts does not deliver"),
        ([position(0, "exchange"), position(1, "exchange"), position(2, "barrier", 6)],
         ", but rank 2 on n2 waits in barrier (collective 6, step 3): some code runs a collective on some of"),
        ([position(0, "barrier"), position(1, "barrier"), position(2, "barrier", 6)],
         ", but rank 2 on n2 waits in barrier (collective 6, step 3)"),
        ([position(0, "barrier"), *(position(rank, None) for rank in range(1, 9))], ", and 5 more; raise"),
    ],
)  # fmt: skip
def test_who_is_named(positions: list[Position], said: str) -> None:
    message = describe_stall(0, positions, 6.0)
    assert message.startswith(f"waited 6 s in {positions[0].collective} (collective 7, step 3)")
    assert said in message
    assert len(render_positions(positions).splitlines()) == len(positions)


class Verbs:
    def __init__(self) -> None:
        self.notes = CollectiveNotes()

    @noted
    def barrier(self) -> str | None:
        return self.notes.collective

    @noted
    def broken(self) -> None:
        raise RuntimeError


def test_collectives_are_noted_while_they_run() -> None:
    verbs = Verbs()
    assert verbs.barrier() == "barrier"
    assert (verbs.notes.collective, verbs.notes.count) == (None, 1)
    with pytest.raises(RuntimeError):
        verbs.broken()
    assert (verbs.notes.collective, verbs.notes.count) == ("broken", 2)
