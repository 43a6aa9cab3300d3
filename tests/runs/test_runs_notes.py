"""Notes of a run say what counts in the end, and none of them is about what can no longer be changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Finished, launch

from mpitrain.data.moments import Moments
from mpitrain.errors import DataError
from mpitrain.runs.model import check_scales

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
    proposal = "use cosine and sine instead"
    assert proposal in train(rows, "training.epochs=1").stderr
    assert proposal not in train(rows, "training.epochs=2", "--resume").stderr


def test_targets_that_predictions_cannot_tell_from_0_are_refused(rows: Path) -> None:
    """Such predictions were 0, and before that the loss became nan."""
    tiny = "variables.output_variables=['1e-30*b']"
    done = launch(["-m", "mpitrain", "train", "data.data_path=rows.csv", *VARIABLES, tiny], 2, cwd=rows)
    assert done.returncode == 2
    (line,) = [one for one in done.stderr.splitlines() if "error" in one]
    assert "are too small for float32; convert them to other units or use training.dtype=float64" in line
    train(rows, tiny, "training.dtype=float64", "training.epochs=1")


def test_small_numbers_that_are_told_from_0_and_constants_are_taken() -> None:
    def summary(values: np.ndarray, noise: float = 0.0) -> Any:
        mean = values.mean(axis=0)
        m2 = np.square(values - mean).sum(axis=0) + noise
        count = np.full(2, float(len(values)))
        moments = Moments(count, mean, m2, values.min(axis=0), values.max(axis=0))
        return SimpleNamespace(input_names=("x",), target_names=("y",), moments=moments)

    normal = np.random.default_rng(0).normal(size=(300, 2))
    for dtype, scales in (("float32", (1e-26, 1e-27)), ("float64", (1e-30, 1e-150))):
        for scale in scales:
            check_scales(dtype, summary(scale * normal))
    check_scales("float32", summary(np.full((300, 2), 1e-10), noise=1e-50))
    check_scales("float32", summary(normal * [1e-35, 1]))
    for dtype, scale in (("float32", 1e-29), ("float64", 1e-170), ("float64", 1e-300)):
        with pytest.raises(DataError, match=f"are too small for {dtype}"):
            check_scales(dtype, summary(scale * normal))
