"""What a run says of the samples that its skill is of."""

from __future__ import annotations

import pytest

from mpitrain.data.dataset.dataset import DataSummary
from mpitrain.runs.page.findings import words_of_samples

FEW = "; too few to judge by: mpitrain ensemble with ensemble.folds=5 holds out each sample once"


@pytest.mark.parametrize(
    ("held_out", "count", "expected"),
    [
        (644, 644, "Over all held-out samples, 644 values of each target."),
        (3, 3, f"Over all held-out samples, 3 values of each target{FEW}."),
        (1, 1, f"Over all held-out samples, 1 value of each target{FEW}."),
        (29, 20_000, f"Over all held-out samples, 29 fields, 20,000 values of each target{FEW}."),
        (1, 700, f"Over all held-out samples, 1 field, 700 values of each target{FEW}."),
        (30, 20_000, "Over all held-out samples, 30 fields, 20,000 values of each target."),
        (0, 40, "Over samples that it was trained on, for none is held out: 40 values of each target."),
    ],
)
def test_a_skill_says_of_how_many_samples_it_is(held_out, count, expected):
    summary = DataSummary(100, held_out, 0, None, None, ("x",), ("y",))
    assert words_of_samples(summary, count) == expected
