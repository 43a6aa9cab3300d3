"""Of two settings of one key on a command line the last one counts, whatever flags stand between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import launch

from mpitrain.cli import ensemble, train
from mpitrain.cli.main import main
from mpitrain.cli.settings import data_and_settings


class _Split(Exception):
    """What a command has made of its words, raised in the place of training."""

    def __init__(self, files: list[str], path: Path | None, overrides: list[str]) -> None:
        self.files, self.path, self.overrides = files, path, overrides


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], _Split]:
    def raise_what_is_split(*arguments: Any) -> None:
        raise _Split(*data_and_settings(*arguments))

    def split_arguments(words: list[str]) -> _Split:
        with pytest.raises(_Split) as caught:
            main(words)
        return caught.value

    for command in (train, ensemble):
        monkeypatch.setattr(command, "data_and_settings", raise_what_is_split)
    return split_arguments


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "a.nc", "seed=1", "--output", "o", "seed=2"],
        ["seed=1", "--data", "a.nc", "seed=2"],
        ["--data", "a.nc", "seed=1", "seed=2", "--epochs", "3"],
        ["--data", "a.nc", "--resume", "seed=1", "seed=2"],
    ],
)
def test_the_last_setting_of_a_key_comes_last(split: Callable[[list[str]], _Split], words: list[str]) -> None:
    overrides = split(["train", *words]).overrides
    assert [word for word in overrides if word.startswith("seed")] == ["seed=1", "seed=2"]


@pytest.mark.parametrize(
    "words",
    [
        ["a.nc", "b.nc", "run.yaml", "seed=1"],
        ["run.yaml", "a.nc", "seed=1", "b.nc"],
        ["seed=1", "--overwrite", "a.nc", "b.nc", "run.yaml"],
    ],
)
@pytest.mark.parametrize("command", ["train", "ensemble"])
def test_data_files_need_no_flag(split: Callable[[list[str]], _Split], command: str, words: list[str]) -> None:
    found = split([command, *words])
    assert (found.files, str(found.path), found.overrides) == (["a.nc", "b.nc"], "run.yaml", ["seed=1"])


def test_a_file_of_settings_after_resume_is_no_run(split: Callable[[list[str]], _Split]) -> None:
    found = split(["train", "--resume", "run.yaml", "seed=1"])
    assert (str(found.path), found.overrides) == ("run.yaml", ["seed=1"])


def test_a_flag_for_data_without_a_data_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "run.yaml", "seed=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "mpitrain: error: --data run.yaml seed=1: no data file; give one, or leave --data out"
    assert "mpitrain starting" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("words", [["a.yaml", "b.yaml"], ["--data", "run.yaml"]])
def test_wrong_words_are_one_line_of_all_ranks(words: list[str]) -> None:
    done = launch(["-m", "mpitrain", "train", *words], 3)
    assert done.returncode == 2
    assert sum(line.startswith("mpitrain: error: ") for line in done.stderr.splitlines()) == 1, done.stderr


def test_a_data_file_in_a_folder_with_an_equals_sign_is_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpitrain.inference.predict.predict", lambda ranks, request: asked.append(request) or 0)
    Path("year=2010").mkdir()
    Path("year=2010/ice.nc").touch()
    assert main(["predict", "model.pt", "--output", "o.nc", "--data", "year=2010/ice.nc", "seed=1"]) == 0
    assert (asked[0].data, asked[0].overrides) == (("year=2010/ice.nc",), ("seed=1",))
