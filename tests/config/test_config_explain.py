"""`mpitrain config explain KEY` finds every setting, by its own name, a part of it, its section and its older names."""

from __future__ import annotations

from pathlib import Path

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
        assert sum(line.startswith("  Allowed: ") for line in rest) == 1
    assert key in keys_of(explain_settings([key.rpartition(".")[2]]))


def test_without_a_word_all_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain"]) == 0
    assert sorted(keys_of(capsys.readouterr().out)) == KEYS


@pytest.mark.parametrize("older", sorted(SAME))
def test_other_trainers_names_lead_to_the_setting(older: str) -> None:
    assert SAME[older] in keys_of(explain_settings([older]))


def test_the_settings_of_a_file_are_explained_in_one_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "output: {model_dir: run}\ntraining: {max_steps: 9, epochs: 2, save_interval: 1, engine: eager}\n"
        "model: {hidden_layers: 2, name: mlp, hidden_size: 8, dropout: 0.1}\nseed: 3\n"
    )
    assert main(["config", "explain", str(path)]) == 0
    keys = keys_of(capsys.readouterr().out)
    assert len(keys) == 10
    assert keys == [key for key in keys_of(explain_settings([])) if key in keys], "a set has no order of its own"


def test_what_it_may_be_and_what_it_is_unless_set() -> None:
    assert explain_settings(["training.scheduler.step_size"]) == (
        "training.scheduler.step_size\n  Epochs between two steps.\n"
        "  Allowed: a whole number, at least 1. Default: 30.\n  Of: step.\n"
    )
    assert "Default: 20." in explain_settings(["epochs"])
    assert RunConfig().training.epochs == 20
    assert "Required." in " ".join(explain_settings(["training.scheduler.type"]).split())
    assert keys_of(explain_settings(["warmup", "seed"])) == ["training.scheduler.warmup_epochs", "seed"]


@pytest.mark.parametrize(
    ("word", "advice"), [("world_size", "mpirun -np N"), ("epochz", "did you mean 'training.epochs'?")]
)
def test_what_is_no_setting_says_what_to_do(word: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mpitrain: error: {word}: not a setting; ")
    assert advice in line


def test_an_option_that_means_two_things_says_with_which_component_it_means_which() -> None:
    lines = explain_settings(["training.optimizer.weight_decay"]).splitlines()
    assert lines[1:3] == [
        "  adam, sgd: L2 penalty on the weights.",
        "  adamw: Each step subtracts this fraction of the weights, times the learning rate.",
    ]
    assert not any(line.startswith("  Of:") for line in lines)
