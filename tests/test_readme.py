"""What README.md says is run: its commands in order, in one folder, and its tables against what they describe."""

from __future__ import annotations

import re

from conftest import PROJECT, TESTS
from readme_text import README, RUN_BY_CI, blocks, table_after

from mpitrain import errors
from mpitrain.bench.step_cases import ENGINES
from mpitrain.config import RunConfig, SchedulerSection
from mpitrain.config.advice.explain import explain_settings


def test_each_promise_is_held_by_a_test_of_the_default_tier() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (TESTS / "README.md").read_text())
    assert len(named) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (TESTS / file).read_text(), f"{file}::{test}"
        assert not file.startswith("lab/")


def test_first_and_second_command_are_what_ci_runs() -> None:
    bash = [block.text.strip() for block in blocks() if block.language == "bash"]
    assert tuple(bash[:2]) == RUN_BY_CI
    assert "bash tests/run.sh" in (PROJECT / ".ci" / "run").read_text()


def test_exit_codes_are_those_of_the_errors() -> None:
    codes = {int(row[0]) for row in table_after("## Exit codes")}
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert codes == {0, *(kind.exit_code for kind in classes)}


def test_the_table_of_speeds_names_engines_that_are_measured() -> None:
    rows = table_after("## How fast")
    engines = [re.match(r"`([\w-]+)`", row[0]) for row in rows]
    assert all(engine is not None and engine[1] in ENGINES for engine in engines)
    assert all(float(cell) > 0 for row in rows for cell in row[1:])


def test_every_setting_that_is_named_exists() -> None:
    sections = "|".join(name for name, field in RunConfig.model_fields.items() if name not in ("semantics", "seed"))
    named = set(re.findall(rf"`(?:--)?((?:{sections})\.[a-z_.]+[a-z])(?=[`=: ])", README.read_text()))
    assert len(named) > 20
    for key in named - {"model.pt", "ensemble.csv"}:
        assert keys_of(explain_settings([key]))[0] == key


def keys_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]


def test_settings_that_tables_name_exist() -> None:
    """The first column of the tables about data and about training."""
    for words, section in (("`config schema` describes", ""), ("| of `training` |", "training.")):
        for row in table_after(words):
            first, *others = re.findall(r"`([\w.]+)`", row[0])
            above = first.rpartition(".")[0]
            for name in (first, *(name if "." in name else f"{above}.{name}".lstrip(".") for name in others)):
                key = f"{section}{name}"
                value: object = RunConfig()
                for part in key.split(".")[:-1]:
                    value = getattr(value, part) or {"scheduler": SchedulerSection(type="step")}[part]
                assert hasattr(value, key.split(".")[-1]), key
