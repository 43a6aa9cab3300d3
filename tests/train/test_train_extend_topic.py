"""What `mpitrain help extend` shows is run: each of its examples is a module that is named in the settings."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PROJECT, launch

from mpitrain.cli.main import main
from mpitrain.config import load_run_config

TOPIC = (PROJECT / "mpitrain" / "help" / "extend.md").read_text()
MODULES = ("my_optimizer", "my_loss", "my_schedule", "my_network", "my_reader", "my_tracker", "my_export")
SETTINGS = """
data: {data_path: [first.fields, second.fields], reader: {type: "my_reader:read_fields", options: {missing: -1.0}}}
variables: {input_variables: [sst], output_variables: [sst]}
model: {name: "my_network:small_network", options: {width: 16}}
training:
  epochs: 2
  global_batch_size: 32
  optimizer: {type: "my_optimizer:SignDescent", learning_rate: 0.001, options: {decay: 0.8}}
  loss_function: {type: "my_loss:log_cosh", options: {scale: 2.0}}
  scheduler: {type: "my_schedule:inverse_root", options: {after: 1}}
tracking: {tracker: {type: "my_tracker:Lines", options: {name: told.txt}}}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TOPIC, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module for each example of the topic, the typed schedule beside the function."""
    *examples, typed = blocks("python")
    for name, text in zip(MODULES, examples, strict=True):
        (tmp_path / f"{name}.py").write_text(f"{typed}\n\n{text}" if name == "my_schedule" else text)
    draw = random.Random(1)
    for name in ("first", "second"):
        rows = [" ".join(str(round(draw.gauss(280, 5), 3)) for _ in range(9)) for _ in range(20)]
        (tmp_path / f"{name}.fields").write_text("\n".join([*rows, " ".join(["-1.0"] * 9)]))
    (tmp_path / "run.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES:
        sys.modules.pop(name, None)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_examples_are_components(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "run.yaml"]) == 0
    typed = "training.scheduler={type: my_schedule:Halving, options: {every: 3}}"
    load_run_config(None, [typed]).config.check_code()
    assert main(["config", "explain", typed, "seed"]) == 0
    assert (
        "options.every\n  Epochs between two halvings.\n  Allowed: a whole number, at least 1. Default: 10. Here: 3"
        in (capsys.readouterr().out)
    )
    rates = load_run_config(None, [typed]).config.training.scheduler.build(1.0, 9)
    assert [rates(epoch, 0) for epoch in range(7)] == [1.0] * 3 + [0.5] * 3 + [0.25]
    assert (
        main(["config", "check", "run.yaml", "training.scheduler={type: my_schedule:Halving, options: {every: 0}}"])
        == 2
    )


def test_the_settings_that_it_shows_are_valid(folder: Path) -> None:
    of_torch, of_reader, of_tracker = blocks("yaml")
    for number, text in enumerate((of_torch, of_reader, of_tracker)):
        (folder / f"{number}.yaml").write_text(text)
        assert main(["config", "check", f"{number}.yaml"]) == 0


def test_the_examples_train_and_export_together(folder: Path) -> None:
    done = launch(["-m", "mpitrain", "train", "run.yaml"], 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len((folder / "mpitrain_run" / "tracking" / "told.txt").read_text().splitlines()) == 2
    words = ["export", "mpitrain_run", "--format", "my_export:as_text", "--output", "network.txt", "--trust-code"]
    exported = launch(["-m", "mpitrain", *words], None, cwd=folder)
    assert exported.returncode == 0, exported.stderr
    assert "(16, 1)" in (folder / "network.txt").read_text()
