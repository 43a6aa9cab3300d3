"""Linear regressions that training may begin at: known coefficients, masked points, the same bits on any ranks."""

from __future__ import annotations

import numpy as np
from played_ranks import PlayedCommunicator, on_played_ranks, played_ranks_of

from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.virtual_ranks import plan_virtual_ranks
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.linear_fit import LinearFit, LinearRegression
from mpitrain.data.dataset.split_rule import SplitRule
from mpitrain.data.samples import Samples

GRID, NUMBER = (3, 4), 60
RANDOM = np.random.default_rng(5)
INPUTS = RANDOM.normal(2, 3, size=(NUMBER, 2, *GRID))
SLOPES = RANDOM.normal(size=(1, *GRID))
IS_KNOWN = (RANDOM.uniform(size=(NUMBER, 1, *GRID)) > 0.2).astype(np.float64)
IS_KNOWN[:, :, 1, 1] = 0


def fit(targets: np.ndarray, num_ranks: int = 1, weights: np.ndarray = IS_KNOWN) -> tuple[LinearFit, np.ndarray]:
    """The fit with places, and normalised inputs (N, F, J, I)."""
    spoilt = np.where(weights > 0, targets, 1e6)
    samples = Samples(INPUTS, spoilt, np.arange(NUMBER), ("a", "b"), ("y",), weights)

    def body(communicator: PlayedCommunicator) -> tuple[LinearFit, np.ndarray]:
        ranks = played_ranks_of(communicator)
        virtual_ranks, _ = plan_virtual_ranks(4, ranks.world_size, ranks.rank)
        dataset = distribute(take_share(samples, ranks), ranks, virtual_ranks, SplitRule(0.0, 0.0, 0), "float64")
        known, reducer = dataset.summary.normalization, FixedTreeReducer(ranks.cpu, virtual_ranks)
        found = LinearRegression(dataset.evaluation(held_out=False), known, reducer).fit_places(ranks, GRID)
        mean, std = (np.asarray(one).reshape(-1, 1, 1) for one in (known.mean, known.std))
        return found, (INPUTS - mean) / std

    first, *others = on_played_ranks(num_ranks, body)
    for other, _ in others:
        assert np.array_equal(other.everywhere, first[0].everywhere)
        assert np.array_equal(other.here, first[0].here)
    return first


def answers(found: LinearFit, inputs: np.ndarray) -> np.ndarray:
    everywhere = np.einsum("nfji,fo->noji", inputs, found.everywhere[1:]) + found.everywhere[0].reshape(-1, 1, 1)
    assert found.here is not None
    return everywhere + np.einsum("nfji,ofji->noji", inputs, found.here[:, 1:]) + found.here[:, 0]


def errors_of(targets: np.ndarray, found: LinearFit, inputs: np.ndarray) -> float:
    return float(np.sqrt((((answers(found, inputs) - targets) * IS_KNOWN) ** 2).sum() / IS_KNOWN.sum()))


def test_one_line_for_all_points_is_found_and_points_add_next_to_nothing() -> None:
    targets = 3 * INPUTS[:, :1] - INPUTS[:, 1:] + 5
    found, inputs = fit(targets)
    assert errors_of(targets, found, inputs) < 1e-10
    assert np.abs(found.here).max() < 1e-10


def test_slopes_and_means_of_each_point_are_found_where_there_are_any() -> None:
    targets = SLOPES * INPUTS[:, :1] + 10 * SLOPES
    found, inputs = fit(targets)
    assert errors_of(targets, found, inputs) < 0.05 * targets.std()
    assert not found.here[:, :, 1, 1].any(), "nothing is known there"


def test_points_add_nothing_to_noise() -> None:
    found, _ = fit(RANDOM.normal(size=(NUMBER, 1, *GRID)))
    assert np.abs(found.here).max() < 0.15  # of a standard deviation of 1, from 60 samples


def test_no_point_has_coefficients_of_its_own_where_left_out_samples_say_so() -> None:
    """Each sample's value is opposite at the other one of its pair: what a point has learnt is wrong next time."""
    half = RANDOM.normal(size=(NUMBER // 2, 1, *GRID))
    found, _ = fit(np.concatenate([half, -half]), weights=np.ones_like(IS_KNOWN))
    assert not found.here.any()


def test_the_same_bits_on_any_number_of_ranks() -> None:
    targets = SLOPES * INPUTS[:, :1] + RANDOM.normal(size=(NUMBER, 1, *GRID))
    one, _ = fit(targets)
    for num_ranks in (2, 3):
        other, _ = fit(targets, num_ranks)
        assert np.array_equal(other.everywhere, one.everywhere)
        assert np.array_equal(other.here, one.here)
