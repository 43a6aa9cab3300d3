"""Faults of one rank in every phase of a run: all end in time, one line names the rank, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_schedules import LAUNCHERS, Ended, Schedule, problems_of_end, schedule
from faulty_run import ASKING, OF_ROOT, PHASES, SPEAKING, STAYING, VANISHING, owner_of
from test_campaign_kills import run_campaign

COUNT = 2000
# One of each way to fail, on two ranks: a rank vanishes, stays (and holds Python's lock) when all is done, is
# interrupted; one that its launcher sees vanish; one of whose failure the fourth rank hears by way of two others. A run
# that is asked to stop has tests of its own.
ALWAYS = (4, 193, 33, 36, 42)


@pytest.mark.slow
def test_runs_with_one_fault_end_as_the_table_says(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    is_full = request.config.getoption("--full")
    said = run_campaign(
        "fault_schedules.py", tmp_path / "faults", *([f"0-{COUNT - 1}"] if is_full else ALWAYS), "--at-once", 2
    )
    with capsys.disabled():
        print("\n" + said)
    count = COUNT if is_full else len(ALWAYS)
    assert f"{count} schedules, {count} as expected" in said


def test_the_schedules_cover_the_table_and_stay_as_they_are() -> None:
    every = [schedule(number) for number in range(COUNT)]
    assert {one.kind for one in every} == {*SPEAKING, *VANISHING, *STAYING, *ASKING}
    assert {(one.phase, one.launcher) for one in every} == {
        (phase, launcher) for phase in PHASES for launcher in LAUNCHERS
    }
    assert {one.num_ranks for one in every} == {2, 3, 4}
    assert all(one.rank == 0 for one in every if one.phase in OF_ROOT)
    assert {one.rank for one in every} == {0, 1, 2, 3}
    assert [schedule(number).kind for number in ALWAYS] == [
        "os._exit(3)",
        "hang with lock",
        "interrupt",
        "SIGBUS",
        "sys.exit(0)",
    ]


@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_begins_with_a_function_that_is_there(phase: str) -> None:
    owner, name = owner_of(PHASES[phase][0])
    assert callable(getattr(owner, name))


KILLED = Schedule("SIGKILL", "a step", 3, 1, 3, "by hand")
LINE = "mpitrain: error: rank 1 on HOST (process 7) exited without an error message: killed by hand\n"


@pytest.mark.parametrize(
    ("codes", "stderr", "seconds", "problem"),
    [
        ([3, -9, 3], LINE, 1.0, None),
        ([3, -9, 3], LINE, 11.0, "took 11.0 s"),
        ([3, -9, 1], LINE, 1.0, "exit codes [3, -9, 1]"),
        ([3, -9, 3], LINE + LINE, 1.0, "said "),
        ([3, -9, 3], LINE.replace("rank 1", "rank 2"), 1.0, "said "),
        ([3, -9, 3], "", 1.0, "said "),
        ([3, -9, 3], LINE + "Traceback (most recent call last)", 1.0, "a traceback"),
    ],
)  # fmt: skip
def test_another_end_is_seen(codes: list[int], stderr: str, seconds: float, problem: str | None) -> None:
    import socket

    ended = Ended(codes, stderr.replace("HOST", socket.gethostname()), seconds)
    problems = problems_of_end(KILLED, ended, limit_s=10.0)
    assert [found.startswith(problem or "") for found in problems] == ([] if problem is None else [True])
