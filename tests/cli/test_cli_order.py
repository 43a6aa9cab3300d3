"""Of two settings of one key on a command line the last one counts, whatever flags stand between them."""

from __future__ import annotations

import pytest
from conftest import launch

from mpitrain.cli import train
from mpitrain.cli.main import main


class _Overrides(Exception):
    def __init__(self, words: list[str]) -> None:
        self.words = words


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "a.nc", "seed=1", "--output", "o", "seed=2"],
        ["seed=1", "--data", "a.nc", "seed=2"],
        ["--data", "a.nc", "seed=1", "seed=2", "--epochs", "3"],
        ["--data", "a.nc", "--resume", "seed=1", "seed=2"],
    ],
)
def test_the_last_setting_of_a_key_comes_last(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(train, "split_settings", lambda given: (_ for _ in ()).throw(_Overrides(list(given))))
    with pytest.raises(_Overrides) as caught:
        main(["train", *words])
    assert [word for word in caught.value.words if word.startswith("seed")] == ["seed=1", "seed=2"]


@pytest.mark.parametrize(
    "words",
    [
        ["a.nc", "b.nc", "run.yaml", "seed=1"],
        ["run.yaml", "a.nc", "seed=1", "b.nc"],
        ["seed=1", "--overwrite", "a.nc", "b.nc", "run.yaml"],
    ],
)
def test_data_files_need_no_flag(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    found = {}
    split = train.split_settings

    def keep(given: list[str]) -> None:
        found["path"], _ = split(given)
        raise _Overrides(list(given))

    monkeypatch.setattr(train, "split_settings", keep)
    files: list[str] = []
    monkeypatch.setattr(train, "split_words", lambda given: (files, [], []))
    with pytest.raises(_Overrides) as caught:
        main(["train", *words])
    assert files == ["a.nc", "b.nc"]
    assert str(found["path"]) == "run.yaml"
    assert sorted(caught.value.words) == ["run.yaml", "seed=1"]


def test_a_flag_for_data_without_a_data_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "run.yaml", "seed=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "mpitrain: error: --data run.yaml seed=1: no data file; give one, or leave --data out"


@pytest.mark.parametrize("words", [["a.yaml", "b.yaml"], ["--data", "run.yaml"]])
def test_wrong_words_are_one_line_of_all_ranks(words: list[str]) -> None:
    done = launch(["-m", "mpitrain", "train", *words], 3)
    assert done.returncode == 2
    assert sum(line.startswith("mpitrain: error: ") for line in done.stderr.splitlines()) == 1, done.stderr
