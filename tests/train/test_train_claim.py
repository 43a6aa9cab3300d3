"""One launch at a time in a run folder: 200 planned interleavings, launches that are over, and hostile claims."""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from planned_turns import Turns, in_turns

from mpitrain.comm.agent.processes import process_born
from mpitrain.errors import OutputError
from mpitrain.runs import beginning
from mpitrain.runs.beginning import TrainRequest
from mpitrain.train.folder import claim
from mpitrain.train.folder.claim import ClaimedFolder, claim_folder, release
from mpitrain.train.folder.launch import Launch, describe_launch, read_launch
from mpitrain.train.folder.made_here import MadeHere
from mpitrain.train.run_folder import RunFolder

NUM_INTERLEAVINGS = 200


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "run"
    path.mkdir()
    return RunFolder(path)


def put(folder: RunFolder, launch: Launch, number: int = 1) -> Path:
    """Leave a claim of another launch."""
    path = folder.path / f".claim-{number:06d}.json"
    path.write_bytes(launch.to_json())
    return path


def own(folder: RunFolder) -> Launch:
    return describe_launch(folder.path, {})


def elsewhere(folder: RunFolder, **changed: str) -> Launch:
    """A launch on another host, of which nobody here can tell whether it is over."""
    return replace(own(folder), host="node7", system="another boot", **changed)


def gone(folder: RunFolder) -> Launch:
    """A launch on this host whose process has ended; its number is that of a younger process."""
    return replace(own(folder), born=str(int(process_born(os.getpid())) - 10**6))


def claims_in(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_the_second_is_refused_in_one_line_with_host_and_process(folder: RunFolder) -> None:
    first = claim_folder(folder)
    with pytest.raises(OutputError) as refused:
        claim_folder(folder)
    launch = read_launch(first.claim)
    assert launch is not None
    assert str(refused.value) == (
        f"{folder.path}: in use by process {os.getpid()} on {launch.host} since {launch.started}; wait for its end, "
        "stop it, or choose another output.model_dir"
    )
    assert claims_in(folder) == [".claim-000001.json"], "nothing of the refused one is left"
    first.check_claim()


@pytest.mark.parametrize("digits", ["0000001", "٠٠٠٠٠١", "00001"])
def test_a_name_that_no_launch_gives_is_no_claim(folder: RunFolder, digits: str) -> None:
    (folder.path / f".claim-{digits}.json").write_bytes(gone(folder).to_json())
    claimed = claim_folder(folder)
    assert claimed.number == 1
    release(claimed)
    assert claims_in(folder) == [f".claim-{digits}.json"]


@pytest.mark.parametrize("number", [10**17, 10**18 - 1, 10**19])
def test_a_claim_of_any_number_is_followed_by_the_next(folder: RunFolder, number: int) -> None:
    put(folder, elsewhere(folder), number)
    assert claim_folder(folder, takes_over=True).number == number + 1


def test_a_number_after_which_there_is_none_is_an_error(folder: RunFolder) -> None:
    put(folder, elsewhere(folder), 10**243 - 1)
    with pytest.raises(OSError, match="too long"):
        claim_folder(folder, takes_over=True)


@pytest.mark.parametrize(("launch", "line"), [(own, "in use by process"), (gone, "holds a run already")])
def test_a_plain_start_names_the_launch_rather_than_the_run(
    folder: RunFolder, launch: Callable[[RunFolder], Launch], line: str
) -> None:
    folder.config.write_text("seed: 1\n")
    put(folder, launch(folder))
    overrides = (f"output.model_dir={folder.path}", "data.data_path=a.nc")
    with pytest.raises(OutputError, match=line):
        beginning._choose_folder(folder.path, False, TrainRequest(overrides=overrides))


OVER: dict[str, Callable[[RunFolder], Launch]] = {
    "gone": gone,
    "requeued": lambda folder: elsewhere(folder, job="4711", attempt="0"),
}


@pytest.mark.parametrize("kind", OVER)
def test_a_launch_that_is_over_is_followed(folder: RunFolder, kind: str) -> None:
    put(folder, OVER[kind](folder))
    launch = describe_launch(folder.path, {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"})
    assert claim_folder(folder, launch=launch).number == 2


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"},
            None,
        ),  # another rank 0 of the same start, on another host
        ({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"}, True),
        ({"SLURM_JOB_ID": "4711"}, True),  # Slurm counts from the second start on
        ({"SLURM_JOB_ID": "4712", "SLURM_RESTART_COUNT": "1"}, None),
        ({}, None),
    ],
)
def test_another_attempt_of_a_job_alone_tells_that_a_launch_elsewhere_is_over(
    folder: RunFolder, environ: dict[str, str], expected: bool | None
) -> None:
    launch = describe_launch(folder.path, environ)
    assert elsewhere(folder, job="4711", attempt="1").is_over(launch) is expected
    assert elsewhere(folder, job="", attempt="9").is_over(launch) is None


@pytest.mark.parametrize("name", ["PBS_JOBID", "LSB_JOBID", "JOB_ID"])
def test_a_job_whose_starts_nobody_counts_does_not_tell(folder: RunFolder, name: str) -> None:
    environ = {name: "4711", "SLURM_RESTART_COUNT": "3"}
    first, second = (describe_launch(folder.path, environ) for _ in range(2))
    assert (first.job, first.attempt) == ("4711", "")
    assert replace(first, host="node7", system="another boot").is_over(second) is None


def test_a_launch_elsewhere_is_taken_over_by_hand_alone(folder: RunFolder) -> None:
    other = elsewhere(folder)
    put(folder, other)
    with pytest.raises(OutputError) as refused:
        claim_folder(folder)
    assert re.search(
        rf"in use by process {other.process} on node7 since .*; if it has ended, add --take-over$", str(refused.value)
    )
    assert claim_folder(folder, takes_over=True).number == 2


def test_a_launch_that_runs_here_is_not_taken_over_by_hand(folder: RunFolder) -> None:
    held = claim_folder(folder)
    with pytest.raises(OutputError, match=rf"in use by process {os.getpid()} on .* another output.model_dir$"):
        claim_folder(folder, takes_over=True)
    held.check_claim()


def test_who_was_taken_for_gone_writes_nothing_more(folder: RunFolder) -> None:
    held = claim_folder(folder, launch=elsewhere(folder))
    follower = claim_folder(folder, takes_over=True)
    with pytest.raises(
        OutputError, match=rf"taken over by process {os.getpid()} on .* this run writes nothing more here"
    ):
        held.check_claim()
    release(held)
    follower.check_claim()
    assert claim_folder_fails(folder)


def claim_folder_fails(folder: RunFolder) -> bool:
    try:
        claim_folder(folder)
    except OutputError:
        return True
    return False


def test_what_is_left_at_the_end(folder: RunFolder) -> None:
    put(folder, gone(folder))
    folder.config.write_text("seed: 1\n")
    held = claim_folder(folder)
    assert held.number == 2
    release(held)
    assert claims_in(folder) == ["config.yaml"]
    assert claim_folder(folder).number == 1


def test_a_copied_folder_is_not_the_one_in_use(folder: RunFolder, tmp_path: Path) -> None:
    held = claim_folder(folder)
    copy = RunFolder(tmp_path / "copy")
    copy.path.mkdir()
    (copy.path / held.claim.name).write_bytes(held.claim.read_bytes())
    assert claim_folder(copy, takes_over=True).number == 2


def test_a_file_system_without_links(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(claim.os, "link", no_link)
    assert claim_folder(folder).number == 1
    assert claim_folder_fails(folder)


HOSTILE: dict[str, Callable[[Path, Path], object]] = {
    "a pipe": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "a link": lambda path, victim: path.symlink_to(victim),
    "a link to nothing": lambda path, victim: path.symlink_to(victim / "nothing"),
    "empty": lambda path, _: path.touch(),
    "other kinds": lambda path, _: path.write_text('{"run": 1, "host": [], "process": "x"}'),
    "too deep": lambda path, _: path.write_text("[" * 60_000),
    "too large": lambda path, _: path.write_text(" " * 70_000),
    "no text": lambda path, _: path.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_claim_touches_nothing_and_is_taken_over_by_hand(
    folder: RunFolder, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    os.utime(victim, (1, 1))
    HOSTILE[kind](folder.path / ".claim-000007.json", victim)
    with pytest.raises(OutputError, match=r"in use by another run \(\.claim-000007\.json\); .* add --take-over$"):
        claim_folder(folder)
    held = claim_folder(folder, takes_over=True)
    assert held.number == 8
    held.check_claim()
    release(held)
    assert victim.read_text() == "mine"
    assert victim.stat().st_mtime == 1


def test_what_a_claim_says_is_no_command_to_a_terminal(folder: RunFolder) -> None:
    put(folder, replace(own(folder), host="\x1b[31mred\nmpitrain: error: no"))
    with pytest.raises(OutputError) as refused:
        claim_folder(folder)
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


def test_a_folder_that_a_refused_launch_takes_back_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, others = RunFolder(tmp_path / "above" / "run"), ["a refused launch"]

    def describe(path: Path, environ: dict[str, str]) -> Launch:
        if others.pop() if others else "":
            path.rmdir()
            path.parent.rmdir()
        return describe_launch(path, environ)

    monkeypatch.setattr(claim, "describe_launch", describe)
    assert claim._begin(folder, MadeHere())[0] == 1
    assert claims_in(folder) == [".claim-000001.json"]


def test_a_member_of_an_ensemble_in_use_is_in_use(tmp_path: Path) -> None:
    ensemble = RunFolder(tmp_path / "ensemble")
    member = RunFolder(ensemble.path / "members" / "0000")
    member.path.mkdir(parents=True)
    held = claim_folder(ensemble)
    with pytest.raises(OutputError, match=f"{ensemble.path}: in use by process"):
        claim._begin(member, MadeHere())
    assert claims_in(member) == []
    release(held)
    assert claim._begin(member, MadeHere())[0] == 1


OUTDATED: dict[str, tuple[bool, Callable[[RunFolder], object], int | None]] = {
    "others came and are gone": (False, lambda folder: put(folder, gone(folder), 2), 3),
    "others came and are there": (False, lambda folder: put(folder, own(folder), 2), None),
    "others came and left no claim": (True, lambda folder: None, 1),
    "the number was given again": (True, lambda folder: put(folder, own(folder)), None),
}


@pytest.mark.parametrize("kind", OUTDATED)
def test_what_was_seen_is_out_of_date_when_the_claim_is_made(
    folder: RunFolder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sees_one, come, expected = OUTDATED[kind]
    seen = put(folder, gone(folder)) if sees_one else None
    real, outdated = claim._newest, [claim._newest(folder.path)]
    if seen is not None:
        seen.unlink()
    come(folder)
    before = claims_in(folder)
    monkeypatch.setattr(claim, "_newest", lambda path: outdated.pop() if outdated else real(path))
    if expected is not None:
        assert claim_folder(folder).number == expected
        return
    assert claim_folder_fails(folder)
    assert claims_in(folder) == before


# Interleavings: each look at the folder and each change of it is a step.


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Turns], None]]:
    """Let the steps of a claim wait for their turn."""
    current: list[Turns] = []
    for name in ("_numbers", "read_launch", "_create"):
        real = getattr(claim, name)

        def stepped(*arguments: object, real: Callable[..., object] = real) -> object:
            for turns in current:
                turns.step()
            return real(*arguments)

        monkeypatch.setattr(claim, name, stepped)

    def plan(turns: Turns) -> None:
        current[:] = [turns]

    yield plan
    current.clear()


BEFORE: dict[str, Callable[[RunFolder], object]] = {
    "nothing": lambda _: None,
    "a process that is gone": lambda folder: put(folder, gone(folder)),
    "one that is taken over by hand": lambda folder: put(folder, elsewhere(folder)),
}


@pytest.mark.parametrize("before", BEFORE)
def test_of_two_launches_one_succeeds_in_every_order(
    tmp_path: Path, before: str, planned: Callable[[Turns], None]
) -> None:
    generator = random.Random(before)
    for number in range(NUM_INTERLEAVINGS):
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        BEFORE[before](folder)
        turns = Turns([generator.randrange(2) for _ in range(16)], 2)
        planned(turns)
        ends = in_turns(turns, [lambda folder=folder: claim_folder(folder, takes_over=True)] * 2)
        (held,) = [one for one in ends if isinstance(one, ClaimedFolder)]
        (refused,) = [one for one in ends if not isinstance(one, ClaimedFolder)]
        assert isinstance(refused, OutputError), refused
        assert re.search(rf"in use by process {os.getpid()} on \S+ since ", str(refused)), number
        held.check_claim()
        assert not list(folder.path.glob("*.partial"))


def test_beside_launches_that_leave_no_claim_never_two_at_a_time(
    tmp_path: Path, planned: Callable[[Turns], None]
) -> None:
    """A claim that is gone in the meantime frees its number: it must not be given to two launches."""
    generator = random.Random(0)
    num_held = 0
    for number in range(NUM_INTERLEAVINGS):
        folder, holders = RunFolder(tmp_path / str(number)), set[str]()
        folder.path.mkdir()
        put(folder, gone(folder))

        turns = Turns([generator.randrange(3) for _ in range(40)], 3)
        planned(turns)

        def come_and_go(folder: RunFolder = folder, holders: set[str] = holders, turns: Turns = turns) -> int:
            try:
                held = claim_folder(folder)
            except OutputError:
                return 0
            holders.add(held.run)
            assert holders == {held.run}, "two launches at a time"
            turns.step()
            held.check_claim()
            holders.remove(held.run)
            release(held)
            return 1

        ends = in_turns(turns, [come_and_go] * 3)
        assert all(isinstance(one, int) for one in ends), ends
        num_held += sum(one for one in ends if isinstance(one, int))
    assert num_held >= NUM_INTERLEAVINGS


@pytest.mark.lab
def test_a_claim_takes_a_start_less_than_20_ms(tmp_path: Path) -> None:
    taken_s = []
    for number in range(5):
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        started_s = time.process_time()  # which other work on the machine does not lengthen
        release(claim_folder(folder))
        taken_s.append(time.process_time() - started_s)
    assert min(taken_s) < 0.02
