"""The changes that mutants.py makes: each kind is one small change of behaviour, the same for the same seed."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import mutants
import pytest
import yaml
from mutants import (
    EQUIVALENT,
    PROJECT,
    Mutant,
    changes_of,
    covering_tests,
    draw_many,
    first_failed,
    map_tests,
    places_of,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("line", "kind", "changed"),
    [
        ("return a + b", "operator", "return a - b"),
        ("return a < b", "comparison", "return a <= b"),
        ("return a and b", "dropped condition", "return a and a"),
        ("return -a", "sign", "return +a"),
        ("return sum(dim=0)", "axis", "return sum(dim=1)"),
        ("return 8", "wrong constant", "return 9"),
        ("return True", "wrong constant", "return False"),
        ("a += b", "operator", "a -= b"),
        ("return f(a, b)", "swapped arguments", "return f(b, a)"),
        ("sync(a)", "dropped call", "None"),
    ],
)
def test_each_kind_is_one_small_change(line: str, kind: str, changed: str) -> None:
    tree = ast.parse(f"def function(a, b):\n    {line}")
    (change,) = [change for node in places_of(tree) for found, change in changes_of(node) if found == kind][:1]
    change()
    assert ast.unparse(tree).split("\n")[1].strip() == changed


def test_texts_of_errors_are_left_alone() -> None:
    tree = ast.parse("def function(a):\n    raise ValueError(f'{a + 1}', 2)")
    assert [kind for node in places_of(tree) for kind, _ in changes_of(node)] == []


def test_a_seed_draws_the_same_changes_of_several_rooms() -> None:
    mutants = draw_many([], 8, seed=3)
    assert mutants == draw_many([], 8, seed=3)
    assert mutants != draw_many([], 8, seed=4)
    assert len({mutant.module.split("/")[1] for mutant in mutants}) == 8


def test_the_tests_nearest_to_the_code_come_first_and_its_room_last() -> None:
    found = map_tests("mpitrain/train/checkpoint/store.py", "fast")
    assert found[0] == "tests/train/test_train_checkpoint_store.py"
    assert found[-1] == "tests/train"


def test_tests_that_pass_through_the_changed_lines_come_the_quickest_of_the_room_first(tmp_path: Path) -> None:
    recorded = {
        "lines": {
            "mpitrain/data/units.py": {"3": ["tests/cli/a", "tests/data/slow"], "4": ["tests/data/quick"], "6": ["b"]}
        },
        "seconds": {"tests/cli/a": 0.5, "tests/data/slow": 2.0, "tests/data/quick": 1.0, "b": 1.0},
    }
    (tmp_path / "data.json").write_text(json.dumps(recorded))
    mutant = Mutant("mpitrain/data/units.py", (2, 5), "sign", "", "")
    found = covering_tests(mutant, [tmp_path / "data.json"])
    assert found == (["tests/data/quick", "tests/data/slow", "tests/cli/a"], 3.5)


def test_a_change_that_no_test_can_notice_is_one_of_a_line_that_is_there_with_its_reason() -> None:
    for one in yaml.safe_load(EQUIVALENT.read_text()) or []:
        assert one["why"]
        assert one["text"] in (PROJECT / one["module"]).read_text()


@pytest.mark.parametrize(
    ("said", "test"),
    [
        ("F\nFAILED tests/a.py::test_x[of two words] - assert 1 == 2\n1 failed", "tests/a.py::test_x[of two words]"),
        ("ERROR tests/a.py::test_x\nFAILED tests/a.py::test_y", "tests/a.py::test_x"),
        ("no tests ran\nERROR: not found: a.py\n", "ERROR: not found: a.py"),
    ],
)
def test_the_failed_test_is_named_with_all_of_its_parameters(said: str, test: str) -> None:
    assert first_failed(said) == test


@pytest.mark.parametrize("is_red_before", [False, True])
def test_a_test_that_fails_without_the_change_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_red_before: bool
) -> None:
    (mutant,) = draw_many(["mpitrain/text_table.py"], 1, 0)
    module = tmp_path / mutant.module
    module.parent.mkdir(parents=True)
    module.write_text("unchanged")

    def failing(copy: Path, tier: str, tests: object, limit_s: float) -> str | None:
        return "tests/test_x.py::test_x" if is_red_before or module.read_text() == mutant.source else None

    monkeypatch.setattr(mutants, "failing_test", failing)
    if is_red_before:
        with pytest.raises(SystemExit, match=r"test_x fails without any change"):
            mutants.judge(mutant, tmp_path, ["ranks"], [])
    else:
        assert mutants.judge(mutant, tmp_path, ["ranks"], []) == ("ranks", "tests/test_x.py::test_x")
    assert module.read_text() == "unchanged"
