"""The map of promises is true: each names code and tests that are there, in the tier that it states."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiers
import yaml

pytestmark = pytest.mark.fast

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "mpitrain"
PROMISES: list[dict[str, Any]] = yaml.safe_load((TESTS / "promises.yaml").read_text())
# Rooms that state nothing beyond their own help and texts.
WITHOUT_A_PROMISE = {
    "__init__.py",
    "__main__.py",
    "version.py",
    "cache.py",
    "compiler.py",
    "json_text.py",
    "text_table.py",
    "py.typed",
}
# Tests of the tests, whose promise this file, tiers.py and mutants.py keep.
OF_THE_TESTS = {"test_data_copies.py", "test_mutants.py", "test_promises.py", "test_tiers.py"}
_MARK = r"pytest\.mark\.(\w+)"


def tiers_in(source: str) -> dict[str, set[str]]:
    """The tiers that the text of a test file states for each of its tests."""
    stated = re.search(r"^pytestmark = (?:\[\s*)?" + _MARK, source, re.MULTILINE)
    of_file = {stated[1]} if stated else set()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    found = {}
    for function in functions:
        if function.name.startswith("test"):
            marks = [ast.unparse(decorator) for decorator in function.decorator_list]
            own = {match[1] for mark in marks if (match := re.fullmatch(_MARK, mark)) and match[1] in tiers.TIERS}
            in_cases = {tier for mark in marks for tier in re.findall(_MARK, mark) if tier in tiers.TIERS}
            found[function.name] = (own or of_file) | in_cases
    return found


def named_tests() -> Iterator[tuple[str, str, str, str]]:
    """Promise, tier, file and function (or nothing) of each test that the map names."""
    for promise in PROMISES:
        for tier in tiers.TIERS:
            for test in promise.get(tier, ()):
                file, _, function = test.partition("::")
                yield promise["promise"], tier, file, function


def test_every_test_that_the_map_names_is_there_in_its_tier() -> None:
    missing = []
    for promise, tier, file, function in named_tests():
        found = tiers_in((TESTS / file).read_text()) if (TESTS / file).is_file() else {}
        if not any(tier in stated for name, stated in found.items() if function in ("", name)):
            missing.append(f"{promise}: tests/{file} {function}: not there, or without a test of the tier {tier}")
    assert missing == []


def test_every_test_file_is_in_the_map_in_each_of_its_tiers() -> None:
    files = {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("test_*.py")}
    stated = {(file, tier) for file, text in files.items() for found in tiers_in(text).values() for tier in found}
    mapped = {(file, tier) for _, tier, file, _ in named_tests()}
    missing = sorted((file, tier) for file, tier in stated - mapped if file not in OF_THE_TESTS)
    assert missing == [], "write them into promises.yaml, below the promise that they hold"


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise["promise"])
def test_every_promise_names_code_and_a_test_of_the_default(promise: dict[str, Any]) -> None:
    assert set(promise) <= {"promise", "code", *tiers.TIERS}
    for path in promise["code"]:
        assert (PACKAGE / path).exists(), f"{promise['promise']}: no mpitrain/{path}"
    assert promise.get("fast") or promise.get("ranks")


def test_every_promise_of_the_threat_model_names_tests_that_are_there() -> None:
    text = (PACKAGE / "help" / "security.md").read_text()
    promised = text.partition("## What is not trusted")[2].partition("## What is not promised")[0]
    promises = re.split(r"\n\n(?=\*\*)", promised.strip())
    assert len(promises) > 10
    assert [one.splitlines()[0] for one in promises if "Tests:" not in one] == []
    named = re.findall(r"`(\w+/test_\w+\.py)`", text)
    assert [file for file in named if not (TESTS / file).is_file()] == []


def test_every_room_of_the_package_keeps_a_promise() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("__pycache__")}
    assert rooms - WITHOUT_A_PROMISE == {path.split("/")[0] for promise in PROMISES for path in promise["code"]}


def test_a_tier_that_only_a_case_has_is_found() -> None:
    source = (
        "pytestmark = pytest.mark.fast\n"
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.machine)])\n"
        "def test_one(a): pass\n"
        "@pytest.mark.ranks\n"
        "def test_two(): pass\n"
    )
    assert tiers_in(source) == {"test_one": {"fast", "machine"}, "test_two": {"ranks"}}
