"""One hash of small networks on 1 to 24 ranks, more than a batch has microbatches or samples, whatever the batch."""

from __future__ import annotations

import pytest
from played_runs import fields, fitted_hashes, points

DENSE = ("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=9")
OF_POINTS = {
    "dense": DENSE,
    "residual": (*DENSE, "model.residual=true", "model.layer_norm=true"),
    "batch norm": (*DENSE, "model.batch_norm=true"),
    "dropout": (*DENSE, "model.dropout=0.3"),
}
OF_FIELDS = {
    "cnn": ("model.name=cnn", "model.hidden_size=4", "training.engine=eager"),
    "unet": ("model.name=unet", "model.hidden_size=4", "training.engine=eager"),
}
RANK_COUNTS, BATCHES = (1, 2, 3, 5, 8, 16, 24), (16, 64, 1000, 4096)


def hashes_of(rank_counts: tuple[int, ...], batch: int, settings: tuple[str, ...], *, of_fields: bool) -> set[str]:
    # A step of a whole batch, and one that is not full.
    samples = fields(batch + batch // 3, 4, 8) if of_fields else points(batch + batch // 3)
    training = (f"training.global_batch_size={batch}", "training.epochs=1")
    return {found for count in rank_counts for found in fitted_hashes(count, *training, *settings, samples=samples)}


@pytest.mark.parametrize(("batch", "rank_counts"), [(16, (1, 3, 24)), (100, (1, 3, 5)), (1000, (1, 3, 24))])
def test_one_hash(batch: int, rank_counts: tuple[int, ...]) -> None:
    assert len(hashes_of(rank_counts, batch, OF_POINTS["residual"], of_fields=False)) == 1


@pytest.mark.lab
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("network", OF_POINTS)
def test_one_hash_of_points(network: str, batch: int) -> None:
    assert len(hashes_of(RANK_COUNTS, batch, OF_POINTS[network], of_fields=False)) == 1


@pytest.mark.lab
@pytest.mark.parametrize("batch", [16, 200])
@pytest.mark.parametrize("network", OF_FIELDS)
def test_one_hash_of_fields(network: str, batch: int) -> None:
    assert len(hashes_of((1, 3, 24), batch, OF_FIELDS[network], of_fields=True)) == 1


def test_more_ranks_than_samples() -> None:
    settings = ("training.global_batch_size=8", "training.epochs=2", *OF_POINTS["dense"])
    assert len({found for count in (1, 24) for found in fitted_hashes(count, *settings, samples=points(20))}) == 1
