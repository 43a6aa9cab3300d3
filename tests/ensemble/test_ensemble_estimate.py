"""What a dry run says that a member costs: the closed form of its network, samples and steps."""

from __future__ import annotations

from pathlib import Path

import netCDF4
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import load_run_config
from mpitrain.ensemble.plan.estimate import Cost, Estimator, longest_first, render_dry_run
from mpitrain.ensemble.plan.members import EnsemblePlan, plan_members


def plan_of(path: Path, *overrides: str) -> EnsemblePlan:
    return plan_members_of(f"data.data_path={path}", *overrides)


def plan_members_of(*settings: str) -> EnsemblePlan:
    return plan_members(load_run_config(None, settings).config, None, settings, Path("ens"))


def estimates_of(plan: EnsemblePlan) -> list[Cost | str]:
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
    (found,) = estimates_of(plan_of(small_history, "model.hidden_size=16", "training.epochs=5"))
    assert found == Cost(5, samples, 7 * 16 + 16 + 16 + 1)
    assert found.product == 5 * samples * 145


def test_synthetic_samples_are_no_more_than_the_limit() -> None:
    for words, num_samples in (((), 6000), (("data.max_patterns=30",), 30), (("data.num_samples=50",), 50)):
        (found,) = estimates_of(plan_members_of(*words))
        assert isinstance(found, Cost)
        assert found.num_samples == num_samples


def test_a_sample_of_fields_is_a_time(small_history: Path) -> None:
    (found,) = estimates_of(plan_of(small_history, "data.samples=fields", "domain.mask_mode=ocean", "model.name=unet"))
    assert isinstance(found, Cost)
    with netCDF4.Dataset(str(small_history)) as dataset:
        assert found.num_samples == len(dataset.dimensions["time"])


def test_a_limit_on_the_samples_counts(small_history: Path) -> None:
    (found,) = estimates_of(plan_of(small_history, "data.max_patterns=30"))
    assert isinstance(found, Cost)
    assert found.num_samples == 30


def test_the_table_has_a_row_a_member(small_history: Path) -> None:
    plan = plan_of(small_history, "ensemble.members=2", "ensemble.grid.model.hidden_size=[4,8]", "training.epochs=1000")
    estimates = [found for found in estimates_of(plan) if isinstance(found, Cost)]
    assert [found.num_weights for found in estimates] == [37, 73, 37, 73]
    lines = on_played_ranks(2, lambda communicator: render_dry_run(plan, played_ranks_of(communicator)))[0]
    assert lines[0].split()[-3:] == ["epochs", "samples", "weights"]
    for line, found in zip(lines[1:5], estimates, strict=True):
        assert [int(word) for word in line.replace(",", "").split()[-3:]] == [
            1000,
            found.num_samples,
            found.num_weights,
        ]
    assert lines[-1] == "4 members, started in the order of epochs x samples x weights, the largest first"


def test_the_longest_are_begun_first(small_history: Path) -> None:
    plan = plan_of(small_history, "ensemble.members=2", "ensemble.grid.training.epochs=[1,3,2]")

    def body(communicator):
        return longest_first(plan.members, Estimator(played_ranks_of(communicator), plan))

    assert [member.number for member in on_played_ranks(1, body)[0]] == [1, 4, 2, 5, 0, 3]
