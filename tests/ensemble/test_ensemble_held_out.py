"""What members say of held-out samples: where they differ, and which samples those of a fold are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.data.dataset.split_rule import held_out_flags, split_rule
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.ensemble import held_out
from mpitrain.ensemble.fold_values import FoldValues, _samples
from mpitrain.ensemble.held_out import _compared


def test_the_map_of_spread_is_of_the_standard_deviation_over_members_less_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `EnsembleNetwork.spread`: of three that say -s, 0 and s it is s, of two that say 0 and 2 it is sqrt(2)."""
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(held_out, "draw_place_map", lambda source, values, look: drawn.setdefault(look.title, values))
    source: Any = SimpleNamespace(grid_shape=(2, 2), target_names=("y",), units={"y": "K"}, close=lambda: None)
    # The first fold has two times of place 0, and place 1; the second one place 1 and place 3.
    scales = np.array([1.0, 5.0, 2.0])
    three = np.stack([-scales, 0 * scales, scales])[:, :, None]
    two = np.array([[0.0, 0.0], [2.0, 4.0]])[:, :, None]
    parts = [
        FoldValues(three, np.full((3, 1), 0.5), np.array([0, 4, 1])),
        FoldValues(two, np.zeros((2, 1)), np.array([5, 7])),
    ]
    found = _compared(source, parts)
    assert sorted(found.maps) == ["Where the errors are", "Where the members differ"]
    np.testing.assert_array_equal(found.maps["Where the errors are"], [[-0.5, (-0.5 + 1) / 2], [np.nan, 2]])
    expected = [[(1 + 5) / 2, (2 + np.sqrt(2)) / 2], [np.nan, 2 * np.sqrt(2)]]
    np.testing.assert_allclose(found.maps["Where the members differ"], expected, rtol=1e-15)


@pytest.mark.parametrize("fold", [0, 2])
def test_the_samples_of_a_fold_are_numbered_through_all_chunks(small_history: Path, fold: int) -> None:
    config = load_run_config(None, [f"data.data_path={small_history}", "data.folds=3", f"data.fold={fold}"]).config
    source = open_source(selection_of(config), 2000)
    samples = open_source(selection_of(config)).read_all()
    usable = samples.take(np.flatnonzero(valid_rows(samples)))
    chosen = usable.take(np.flatnonzero(held_out_flags(0, len(usable), split_rule(config.split_data))))
    assert len(source.chunks) > 5
    assert len(usable) / 4 < len(chosen) < len(usable) / 2
    inputs, truth, index = _samples(source, config.split_data)
    np.testing.assert_array_equal(index, chosen.grid_index)
    np.testing.assert_array_equal(inputs, chosen.inputs)
    np.testing.assert_array_equal(truth, chosen.targets)
