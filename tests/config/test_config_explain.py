"""`mpitrain config explain KEY` finds every setting, by its own name, a part of it, its section and its older names."""

from __future__ import annotations

import pytest

from mpitrain.cli.main import main
from mpitrain.config import RunConfig
from mpitrain.config.advice.explain import explain_settings
from mpitrain.config.messages import known_keys
from mpitrain.config.older.synonyms import SAME

KEYS = sorted(".".join(path) for path in known_keys())


def keys_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_found_by_its_key(key: str) -> None:
    text = explain_settings([key])
    first, *rest = text.splitlines()
    assert first.split()[0] == key
    assert rest[0].strip(), "without a word on what it is"
    is_section = first.endswith("(a section)")
    assert is_section == any(other.startswith(f"{key}.") for other in KEYS)
    if not is_section:
        assert sum(line.startswith("  Takes: ") for line in rest) == 1
    assert key in keys_of(explain_settings([key.rpartition(".")[2]]))


def test_without_a_word_all_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain"]) == 0
    assert sorted(keys_of(capsys.readouterr().out)) == KEYS


@pytest.mark.parametrize("older", sorted(SAME))
def test_other_trainers_names_lead_to_the_setting(older: str) -> None:
    assert SAME[older] in keys_of(explain_settings([older]))


def test_what_it_may_be_and_what_it_is_unless_set() -> None:
    assert explain_settings(["training.scheduler.step_size"]) == (
        "training.scheduler.step_size\n  Epochs between two steps of `step`.\n"
        "  Takes: a whole number, at least 1. Unless set: 30.\n"
    )
    assert "Unless set: 20." in explain_settings(["epochs"])
    assert RunConfig().training.epochs == 20
    assert "It must be given." in explain_settings(["training.scheduler.type"])
    assert keys_of(explain_settings(["warmup", "seed"])) == ["training.scheduler.warmup_epochs", "seed"]


@pytest.mark.parametrize(
    ("word", "advice"), [("world_size", "mpirun -np N"), ("epochz", "did you mean 'training.epochs'?")]
)
def test_what_is_no_setting_says_what_to_do(word: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpitrain: error: {word}: no setting; ")
    assert advice in line
