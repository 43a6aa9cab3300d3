"""What a dry run says that a member costs: the closed form of its network, samples and steps."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import pytest
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import load_run_config
from mpitrain.ensemble.plan.estimate import Estimate, Estimator, costs_of, render_dry_run
from mpitrain.ensemble.plan.members import EnsemblePlan, plan_members


def plan_of(path: Path, *overrides: str) -> EnsemblePlan:
    return plan_members_of(f"data.data_path={path}", *overrides)


def plan_members_of(*settings: str) -> EnsemblePlan:
    return plan_members(load_run_config(None, settings).config, None, settings, Path("ens"))


def estimates_of(plan: EnsemblePlan) -> list[Estimate | str]:
    def body(communicator):
        estimator = Estimator(played_ranks_of(communicator), plan)
        return [estimator.of_member(member) for member in plan.members]

    return on_played_ranks(1, body)[0]


def num_northern_points(path: Path) -> int:
    """The points between the first and the last row of the grid that have an ocean point beyond 40 N."""
    with netCDF4.Dataset(str(path)) as dataset:
        is_wanted = (dataset["ULAT"][:] > 40) & (dataset["umask"][:] == 1)
        (rows,) = is_wanted.any(axis=1).nonzero()
        return int(rows[-1] + 1 - rows[0]) * is_wanted.shape[1]


def test_sizes_are_those_of_the_network_and_the_samples(small_history: Path) -> None:
    samples = num_northern_points(small_history)
    plan = plan_of(small_history, "model.hidden_size=16", "training.epochs=5", "training.global_batch_size=100")
    (found,) = estimates_of(plan)
    weights = 7 * 16 + 16 + 16 + 1
    assert isinstance(found, Estimate)
    assert (found.num_weights, found.num_samples) == (weights, samples)
    # Three 64-bit numbers a sample; the weights, their gradient and two moments, and as much for the best.
    assert found.own_bytes == 24 * samples + 8 * 4 * weights
    steps = -(-samples // 100) * 5
    assert found.seconds == pytest.approx(3 * weights * samples * 5 / 2e10 + 2e-6 * steps, rel=1e-12)


def test_a_full_batch_is_one_step_an_epoch(small_history: Path) -> None:
    full, of_100 = (
        estimates_of(plan_of(small_history, f"training.global_batch_size={size}"))[0] for size in ("full", 100)
    )
    assert isinstance(full, Estimate)
    assert isinstance(of_100, Estimate)
    epochs = load_run_config(None).config.training.epochs
    more_steps = (-(-full.num_samples // 100) - 1) * epochs
    assert of_100.seconds - full.seconds == pytest.approx(2e-6 * more_steps, rel=1e-9)


@pytest.mark.parametrize(
    ("word", "num_steps"),
    [
        ("training.batch_size=full", 3),
        ("training.global_batch_size=null", 3 * 4),
        ("training.global_batch_size=40", 3 * 5),
    ],
)
def test_steps_are_those_of_the_batch_that_is_asked_for(word: str, num_steps: int) -> None:
    (found,) = estimates_of(plan_members_of("data.num_samples=200", "model.hidden_size=4", "training.epochs=3", word))
    assert isinstance(found, Estimate)
    assert (found.num_weights, found.num_samples) == (7 * 4 + 4 + 4 + 1, 200)
    assert found.seconds == pytest.approx(3 * 37 * 200 * 3 / 2e10 + 2e-6 * num_steps, rel=1e-12)


def test_synthetic_samples_are_no_more_than_the_limit() -> None:
    for words, num_samples in (((), 6000), (("data.max_patterns=30",), 30), (("data.num_samples=50",), 50)):
        (found,) = estimates_of(plan_members_of(*words))
        assert isinstance(found, Estimate)
        assert found.num_samples == num_samples


def test_weights_of_64_bits_take_twice_as_much(small_history: Path) -> None:
    single, double = (estimates_of(plan_of(small_history, f"training.dtype=float{bits}"))[0] for bits in (32, 64))
    assert isinstance(single, Estimate)
    assert isinstance(double, Estimate)
    assert double.own_bytes - single.own_bytes == 8 * 4 * single.num_weights


def test_a_sample_of_fields_is_a_time(small_history: Path) -> None:
    (found,) = estimates_of(plan_of(small_history, "data.samples=fields", "domain.mask_mode=ocean", "model.name=unet"))
    assert isinstance(found, Estimate)
    with netCDF4.Dataset(str(small_history)) as dataset:
        assert found.num_samples == len(dataset.dimensions["time"])


def test_a_limit_on_the_samples_counts(small_history: Path) -> None:
    (found,) = estimates_of(plan_of(small_history, "data.max_patterns=30"))
    assert isinstance(found, Estimate)
    assert found.num_samples == 30


def test_the_table_has_a_row_a_member_and_the_sum(small_history: Path) -> None:
    plan = plan_of(
        small_history, "ensemble.members=2", "ensemble.grid.model.hidden_size=[4,8]", "training.epochs=100000"
    )
    estimates = [found for found in estimates_of(plan) if isinstance(found, Estimate)]
    assert [found.num_weights for found in estimates] == [37, 73, 37, 73]
    lines = on_played_ranks(2, lambda communicator: render_dry_run(plan, played_ranks_of(communicator)))[0]
    assert lines[0].split()[-5:] == ["weights", "samples", "about", "s", "MB"]
    for line, found in zip(lines[1:5], estimates, strict=True):
        weights, samples, seconds, megabytes = line.replace(",", "").split()[-4:]
        assert (int(weights), int(samples)) == (found.num_weights, found.num_samples)
        assert float(seconds) == pytest.approx(found.seconds, rel=0.05)
        assert float(megabytes) == pytest.approx(found.own_bytes / 1e6, rel=0.05)
    seconds = sum(found.seconds for found in estimates)
    assert seconds > 2.0
    assert lines[-1].startswith(f"4 members, about {seconds:.0f} s on one core, {seconds / 2:.0f} s here (samples at m")


def test_costs_are_the_seconds_of_the_members(small_history: Path) -> None:
    plan = plan_of(small_history, "ensemble.grid.training.epochs=[1,3]")

    def body(communicator):
        return costs_of(plan.members, Estimator(played_ranks_of(communicator), plan))

    one, three = on_played_ranks(1, body)[0]
    assert three == pytest.approx(3 * one, rel=1e-12)
