"""The tiers hold: each test has one, the nearest counts, and a test of a tier starts no program of another."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiers
from machine_rooms import ROOMS, Room, in_order

pytestmark = pytest.mark.fast
pytest_plugins = ["pytester"]
NESTED = """
import pytest
pytestmark = pytest.mark.fast

def test_of_the_file(): pass

@pytest.mark.ranks
@pytest.mark.parametrize("case", ["a", pytest.param("b", marks=pytest.mark.machine)])
def test_of_parameters(case): pass

@pytest.mark.ranks
class TestOfAClass:
    def test_of_the_class(self): pass

    @pytest.mark.machine
    def test_of_its_own(self): pass
"""
FOUND = {
    "test_of_the_file": "fast",
    "test_of_parameters[a]": "ranks",
    "test_of_parameters[b]": "machine",
    "test_of_the_class": "ranks",
    "test_of_its_own": "machine",
}


def collected(pytester: pytest.Pytester, source: str) -> list[pytest.Item]:
    """The tests of a file with this text, before anything is done about their marks."""
    pytester.makeini("\n    ".join(["[pytest]\nmarkers =", *tiers.TIERS]))
    pytester.makepyfile(test_new=source)
    return pytester.inline_genitems()[0]


def test_the_nearest_tier_counts_and_is_the_only_mark_left(pytester: pytest.Pytester) -> None:
    items = collected(pytester, NESTED)
    tiers.mark_tiers(items)
    assert {item.name: tiers.tier_of(item) for item in items} == FOUND
    # What `-m` looks at.
    left = {item.name: [mark.name for mark in item.iter_markers() if mark.name in tiers.TIERS] for item in items}
    assert left == {name: [tier] for name, tier in FOUND.items()}


def test_a_file_without_a_tier_is_named_with_what_to_write(pytester: pytest.Pytester) -> None:
    items = collected(pytester, "def test_something(): pass")
    with pytest.raises(pytest.UsageError, match=r"test_new\.py: no tier; write `pytestmark = pytest\.mark\.fast`"):
        tiers.mark_tiers(items)


def test_two_tiers_at_one_place_are_refused(pytester: pytest.Pytester) -> None:
    items = collected(pytester, "import pytest\n@pytest.mark.fast\n@pytest.mark.ranks\ndef test_something(): pass")
    with pytest.raises(pytest.UsageError, match=r"test_something: two tiers at one place"):
        tiers.mark_tiers(items)


@pytest.mark.parametrize(
    ("tier", "program", "is_allowed"),
    [
        ("fast", "g++", True),
        ("fast", "c++-12", True),
        ("fast", "python3", False),
        ("fast", "bash", False),
        ("ranks", "mpirun", True),
        ("ranks", "bash", True),
        ("ranks", "qemu-x86_64", False),
        ("ranks", "slurmctld", False),
        ("ranks", "smpirun", False),
        ("machine", "qemu-x86_64", True),
    ],
)
def test_what_a_tier_may_start(tier: str, program: str, is_allowed: bool) -> None:
    assert (tiers.refusal(tier, "subprocess.Popen", program) is None) == is_allowed


def test_a_fast_test_forks_nothing() -> None:
    assert tiers.refusal("fast", "os.fork", "") is not None


def test_a_program_is_refused_where_it_would_start() -> None:
    with pytest.raises(pytest.fail.Exception, match="a fast test starts python"), tiers.only_programs_of("fast"):
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_failure_that_was_held_back_is_told_at_the_end() -> None:
    def start_unseen() -> None:
        with pytest.raises(pytest.fail.Exception):
            subprocess.run([sys.executable, "-c", ""], check=True)

    def join_a_thread() -> None:
        thread = threading.Thread(target=start_unseen)
        thread.start()
        thread.join()

    with pytest.raises(pytest.fail.Exception, match="a fast test starts python"), tiers.only_programs_of("fast"):
        join_a_thread()


def test_a_compiler_may_run() -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, "--version"], check=True, capture_output=True)


class _Called:
    """A configuration of pytest that was called with these arguments."""

    def __init__(self, *arguments: str) -> None:
        source = pytest.Config.ArgsSource
        self.args, self.args_source = list(arguments), source.ARGS if arguments else source.TESTPATHS


@pytest.mark.parametrize(
    ("arguments", "expression"),
    [
        ([], "fast"),
        (["tests/train"], "fast"),
        (["tests/train/test_train_resume.py"], ""),
        (["tests/train/test_train_resume.py::test_one[a.b]", "tests/test_layers.py"], ""),
        (["tests/train/test_train_resume.py", "tests/data"], "fast"),
    ],
)
def test_a_named_file_runs_whole_and_anything_else_its_fast_tests(arguments: list[str], expression: str) -> None:
    assert tiers.default_expression(_Called(*arguments)) == expression  # type: ignore[arg-type]


def test_every_folder_of_tests_with_a_test_of_the_machine_is_a_room() -> None:
    here = Path(__file__).parent
    files = [path for path in here.rglob("test_*.py") if "pytest.mark.machine" in path.read_text()]
    folders = {"top" if path.parent == here else path.parent.name for path in files if path != Path(__file__)}
    assert folders == {room.name for room in ROOMS}


def test_rooms_whose_code_changed_come_first_and_the_others_take_turns() -> None:
    rooms = [Room("slow", 9, ("a",)), Room("b", 1, ("b",)), Room("quick", 2, ("c",)), Room("d", 3, ())]
    changed = ["mpitrain/a/engine.py", "tests/quick/test_quick.py", "mpitrain/base.py"]
    assert [room.name for room in in_order(rooms, changed, 0)] == ["quick", "slow", "b", "d"]
    assert [room.name for room in in_order(rooms, changed, 1)] == ["quick", "slow", "d", "b"]
    assert [room.name for room in in_order(rooms, [], 6)] == ["quick", "d", "slow", "b"]
