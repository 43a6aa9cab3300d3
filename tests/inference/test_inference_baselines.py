"""Baselines: answers known in closed form, masked points, the same numbers on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from played_ranks import PlayedCommunicator, on_played_ranks, played_ranks_of
from torch import nn

from mpitrain.comm.virtual_ranks import plan_virtual_ranks
from mpitrain.config import TrainingSection
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.split_rule import TRAINING, VALIDATION, HeldOutPlaces, SplitRule
from mpitrain.data.samples import Samples
from mpitrain.inference.page.baselines import Levels, baseline_losses

LINEAR, PLACE, MONTH = "linear regression", "climatology by place", "climatology by place and month"
A_QUARTER = SplitRule(0.0, 0.25, 0)
RANDOM = np.random.default_rng(3)


def roles(is_held_out):
    """The roles of places, of which some are held out."""
    return np.where(is_held_out, np.uint8(VALIDATION), np.uint8(TRAINING))


def samples_of(inputs: np.ndarray, targets: np.ndarray, names: Sequence[str], **more: np.ndarray) -> Samples:
    return Samples(inputs, targets, np.arange(len(inputs)), tuple(names), tuple("yz"[: targets.shape[1]]), **more)


def losses_of(samples: Samples, levels: Levels, num_ranks: int = 1, rule: SplitRule = A_QUARTER) -> dict[str, float]:
    def body(communicator: PlayedCommunicator) -> dict[str, float]:
        ranks = played_ranks_of(communicator)
        virtual_ranks, _ = plan_virtual_ranks(4, ranks.world_size, ranks.rank)
        dataset = distribute(take_share(samples, ranks), ranks, virtual_ranks, rule, "float64")
        return baseline_losses(TrainingSection(), dataset, nn.Identity(), levels, virtual_ranks, ranks)

    first, *others = on_played_ranks(num_ranks, body)
    assert all(other == first for other in others)
    return first


def test_linear_regression_finds_a_line_and_constant_or_equal_inputs_do_no_harm() -> None:
    inputs = RANDOM.normal(size=(200, 2))
    inputs = np.stack([*inputs.T, inputs[:, 0], np.full(200, 7.0)], axis=1)
    targets = np.stack([3 * inputs[:, 0] - inputs[:, 1] + 5, RANDOM.normal(size=200)], axis=1)
    only_noise = losses_of(samples_of(inputs, targets[:, 1:], "abcd"), Levels())[LINEAR]
    found = losses_of(samples_of(inputs, targets, "abcd"), Levels())
    assert found == {LINEAR: pytest.approx(only_noise / 2)}
    assert 0.5 < only_noise < 1.5


def test_climatology_by_place_and_month_of_points() -> None:
    months, places = np.repeat(np.tile(np.arange(1, 13), 5), 6), np.tile(np.arange(6), 60)
    by_place, by_month = RANDOM.normal(size=6), RANDOM.normal(size=13)
    samples = samples_of(RANDOM.normal(size=(360, 1)), (by_place[places] + by_month[months])[:, None], "a")
    found = losses_of(samples, Levels(6, months[::6]))
    assert found[MONTH] == pytest.approx(0, abs=1e-20)
    assert 0.3 * by_month[1:].var() < found[PLACE] < 2 * by_month[1:].var()
    assert MONTH not in losses_of(samples, Levels(6))


def test_a_climatology_that_says_what_another_row_says_is_left_out() -> None:
    """Of one month a year, those of places and months are the same; where nothing was trained on it is the mean."""
    random, places = np.random.default_rng(0), np.tile(np.arange(6), 60)
    samples = samples_of(random.normal(size=(360, 1)), places[:, None] + random.normal(size=(360, 1)), "a")
    june = Levels(6, np.full(60, 6))
    elsewhere = SplitRule(
        0.0, 0.25, 0, HeldOutPlaces(roles(np.arange(6) < 2), 6, by_time=False), description="2 of 6 blocks"
    )
    for num_ranks in (1, 2, 3):
        assert set(losses_of(samples, june, num_ranks)) == {LINEAR, PLACE}
        assert set(losses_of(samples, june, num_ranks, elsewhere)) == {LINEAR}
    # Whole years are held out: each month is known at each place.
    months = Levels(6, np.tile(np.arange(1, 13), 5))
    years = SplitRule(
        0.0, 0.25, 0, HeldOutPlaces(roles(np.arange(60) < 12), 6, by_time=True), description="1 of 5 blocks"
    )
    assert set(losses_of(samples, months, 2, years)) == {LINEAR, PLACE, MONTH}
    # Months that were not trained on are not known.
    spring = SplitRule(
        0.0, 0.25, 0, HeldOutPlaces(roles(np.arange(60) % 12 < 3), 6, by_time=True), description="blocks"
    )
    assert set(losses_of(samples, months, 2, spring)) == {LINEAR, PLACE}


def test_climatology_of_fields_leaves_masked_points_out() -> None:
    place = RANDOM.normal(size=(1, 1, 3, 4))
    targets = np.repeat(place, 24, axis=0)
    weights = (RANDOM.uniform(size=(24, 1, 3, 4)) > 0.2).astype(np.float64)
    weights[:, :, 1, 1] = 0
    spoilt = np.where(weights > 0, targets, 1e6)
    samples = samples_of(RANDOM.normal(size=(24, 2, 3, 4)), spoilt, "ab", weights=weights)
    found = losses_of(samples, Levels(1, np.tile(np.arange(1, 13), 2)))
    assert found[PLACE] == pytest.approx(0, abs=1e-20)
    assert MONTH not in found, "two fields of a month, of which some are held out, are no climatology"


def test_persistence_is_the_newest_earlier_level_of_every_target() -> None:
    series = RANDOM.normal(size=(100, 2)).cumsum(axis=0)
    inputs = np.stack([series[:-2, 0], series[1:-1, 0], series[1:-1, 1]], axis=1)
    names = ("y[time-2]", "y[time-1]", "z[time-1]")
    found = losses_of(samples_of(inputs, series[2:], names), Levels())
    steps = np.diff(series, axis=0) ** 2
    assert 0.3 * steps.mean() < found["persistence"] < 3 * steps.mean()
    assert "persistence" not in losses_of(samples_of(inputs, series[2:], ("y[time-2]", "y[time-1]", "b")), Levels())


@pytest.mark.parametrize("lags", [(1, 2), (2, 1)])
def test_persistence_of_a_steady_rise_is_a_step_behind(lags: tuple[int, int]) -> None:
    numbers = np.arange(100.0)[:, None]
    found = losses_of(samples_of(numbers - lags, numbers, [f"y[time-{lag}]" for lag in lags]), Levels())
    assert found["persistence"] == 1


def test_the_same_numbers_on_any_number_of_ranks() -> None:
    samples = samples_of(RANDOM.normal(size=(120, 3)), RANDOM.normal(size=(120, 2)), "abc")
    levels = Levels(4, np.tile(np.arange(1, 4), 10))
    one = losses_of(samples, levels)
    assert set(one) == {LINEAR, PLACE, MONTH}
    assert losses_of(samples, levels, 2) == one
    assert losses_of(samples, levels, 3) == one
