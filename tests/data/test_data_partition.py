"""Who owns which samples: the C++ program's loop, and choices that no rank count changes."""

import numpy as np
import pytest
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.data.dataset import reference
from mpitrain.data.dataset.batches import members_of
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.reference import MOST_SAMPLES_PER_RANK, partition_round_robin
from mpitrain.data.dataset.split_rule import SplitRule, held_out_flags
from mpitrain.data.samples import Samples


def visit_as_the_cpp_program_does(is_selected, world_size, rank, limit):
    kept = []
    for grid_index in range(rank, len(is_selected), world_size):
        if is_selected[grid_index]:
            kept.append(grid_index)
        if len(kept) == limit:
            break
    return kept


def shared_out(grid_index, world_size):
    """Each rank's grid points, when the ranks have read the selection in parts."""
    points = Samples(
        np.zeros((len(grid_index), 1), np.float32), np.zeros((len(grid_index), 1), np.float32), grid_index, ("x",)
    )

    def body(communicator):
        ranks = played_ranks_of(communicator)
        return partition_round_robin(take_share(points, ranks), ranks).grid_index.tolist()

    return on_played_ranks(world_size, body)


@pytest.mark.parametrize("limit", [5, 40, MOST_SAMPLES_PER_RANK])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_round_robin_is_the_plain_loop(monkeypatch, world_size, limit):
    monkeypatch.setattr(reference, "MOST_SAMPLES_PER_RANK", limit)
    is_selected = np.random.default_rng(2).random(301) < 0.4
    owned = shared_out(np.flatnonzero(is_selected), world_size)
    for rank in range(world_size):
        assert owned[rank] == visit_as_the_cpp_program_does(is_selected, world_size, rank, limit)


def test_a_rank_takes_400000_samples_at_most():
    owned = shared_out(np.arange(900_001), 2)[1]
    assert len(owned) == 400_000
    assert owned[-1] == 799_999


@pytest.mark.parametrize("num_samples", [0, 1, 7, 8, 9, 100])
def test_virtual_ranks_own_every_sample_once(num_samples):
    owned = [members_of(v, 8, num_samples).tolist() for v in range(8)]
    assert owned == [[i for i in range(num_samples) if i % 8 == v] for v in range(8)]


def held_out(num_samples, fraction, seed):
    return np.flatnonzero(held_out_flags(0, num_samples, SplitRule(0.0, fraction, seed)))


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
def test_the_validation_set_has_its_share(fraction):
    # Five standard errors of a binomial share.
    assert (
        abs(len(held_out(20_000, fraction, seed=6)) / 20_000 - fraction)
        <= 5 * (fraction * (1 - fraction) / 20_000) ** 0.5
    )


def test_a_sample_is_held_out_by_seed_and_position_alone():
    validation = held_out(1000, 0.1, seed=6)
    of_fewer = held_out(400, 0.1, seed=6)
    assert of_fewer.tolist() == [position for position in validation if position < 400]
    assert held_out(1000, 0.1, seed=6).tolist() == validation.tolist()
    assert held_out(1000, 0.1, seed=7).tolist() != validation.tolist()
    assert set(validation) <= set(held_out(1000, 0.2, seed=6))
