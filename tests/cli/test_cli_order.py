"""Of two settings of one key on a command line the last one counts, whatever flags stand between them."""

from __future__ import annotations

import pytest

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
