"""Notes of a run say what counts in the end, and none of them is about what can no longer be changed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Finished, launch

VARIABLES = ("variables.input_variables=[lon,a]", "variables.output_variables=[b]", "model.name=mlp",
             "model.hidden_layers=1", "model.hidden_size=8")  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A table of 300 rows with a longitude around the globe."""
    a, b = np.random.default_rng(50).normal(size=(2, 300))
    table = np.stack([np.linspace(0, 359, 300), a, 2 * a - b], axis=1)
    np.savetxt(tmp_path / "rows.csv", table, delimiter=",", header="lon,a,b", comments="")
    return tmp_path


def train(folder: Path, *words: str) -> Finished:
    done = launch(["-m", "mpitrain", "train", "data.data_path=rows.csv", *VARIABLES, *words], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ((), "--debug: a quick run: training.epochs=1 data.max_patterns=512"),
        (("--epochs", "3"), "--debug: a quick run: data.max_patterns=512"),
        (("training.epochs=3", "data.max_patterns=100"), "--debug: a quick run"),
    ],
)
def test_the_note_of_a_quick_run_has_what_it_sets(rows: Path, words: tuple[str, ...], note: str) -> None:
    done = train(rows, "--debug", *words)
    assert f"{note}\n" in done.stderr
    assert f"Trained  {3 if words else 1} epoch" in done.stdout


def test_a_resumed_run_is_not_told_of_other_inputs(rows: Path) -> None:
    proposal = "cosine and sine have none"
    assert proposal in train(rows, "training.epochs=1").stderr
    assert proposal not in train(rows, "training.epochs=2", "--resume").stderr


def test_what_varies_less_than_predictions_can_tell_is_refused(rows: Path) -> None:
    """Such predictions were 0, and before that the loss became nan."""
    tiny = "variables.output_variables=['1e-30*b']"
    done = launch(["-m", "mpitrain", "train", "data.data_path=rows.csv", *VARIABLES, tiny], 2, cwd=rows)
    assert done.returncode == 2
    (line,) = [one for one in done.stderr.splitlines() if "error" in one]
    assert re.search(
        r"its standard deviation, 2\.\d+e-30, is too small a number of float32; use training\.dtype=fl", line
    )
    train(rows, tiny, "training.dtype=float64", "training.epochs=1")
