"""Parts of predictions and reports, each alone: an ensemble's columns, a report's summary, months of files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError
from mpitrain.inference.ensemble import EnsembleArithmetic, _spread
from mpitrain.inference.page.baselines import _months
from mpitrain.inference.quality.skill import _check_some
from mpitrain.inference.report import _summary


class Member:
    """Answers `factor` times the inputs (N, F), with the derivative `factor` of each."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def evaluate(self, inputs: Any, with_jacobian: bool) -> tuple[Any, ...]:
        values = self.factor * inputs
        return (values, np.tile(self.factor * np.eye(inputs.shape[1]), (len(inputs), 1, 1)))[: 1 + with_jacobian]


def test_an_ensemble_answers_its_mean_then_spread_and_members_cell_by_cell() -> None:
    inputs = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ensemble = EnsembleArithmetic([Member(1.0), Member(3.0)])  # type: ignore[list-item]
    mean, columns = ensemble.evaluate(inputs, with_jacobian=False)
    deviation = np.sqrt(2.0)
    np.testing.assert_allclose(mean, 2.0 * inputs)
    np.testing.assert_allclose(columns, np.hstack([deviation * inputs, inputs, 3.0 * inputs]))
    _, jacobian, columns = ensemble.evaluate(inputs, with_jacobian=True)
    np.testing.assert_allclose(jacobian, np.tile(2.0 * np.eye(2), (3, 1, 1)))
    np.testing.assert_allclose(columns[:, 6:], np.tile(deviation * np.eye(2).ravel(), (3, 1)))


@pytest.mark.parametrize(("weights", "loss"), [("best", 0.2), ("final", 0.3)])
def test_a_summary_tells_the_last_epoch_and_the_best(weights: str, loss: float) -> None:
    records = [
        {"epoch": epoch, "step": 10 * epoch, "wall_time_s": 1.5, "train_loss": 1.0 / epoch, "validation_loss": held_out}
        for epoch, held_out in ((1, 0.5), (2, 0.2), (3, 0.3))
    ]
    told = _summary(SimpleNamespace(path=Path("run")), "standard", weights == "best", records)  # type: ignore[arg-type]
    assert (told["epochs"], told["steps"], told["wall_time_s"]) == (3, 30, 4.5)
    assert (told["train_loss"], told["validation_loss"], told["best_epoch"]) == (1.0 / 3, loss, 2)


def test_the_months_of_a_file_are_found(small_history: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"data:\n  data_path: {small_history}\n")
    source = open_source(selection_of(load_run_config(tmp_path / "run.yaml", []).config))
    months = _months(source)
    assert months is not None
    assert len(months) == sum(record.num_times for record in source.files)
    assert set(months) <= set(range(1, 13))


def test_samples_that_are_all_missing_or_none_are_refused(small_history: Path) -> None:
    source = open_source(selection_of(load_run_config(None, [f"data.data_path={small_history}"]).config))
    _check_some(source, 5, 1)
    with pytest.raises(DataError, match="all 5 selected samples hold a NaN or a fill value"):
        _check_some(source, 5, 0)
    with pytest.raises(DataError, match="no point is selected; the rule is: "):
        _check_some(source, 0, 0)


def test_one_member_has_no_spread() -> None:
    assert _spread(np.ones((1, 2, 3))).tolist() == np.zeros((2, 3)).tolist()
    assert _spread(np.array([[1.0], [3.0]])).tolist() == [2.0**0.5]
