"""Members are pure functions of the settings: seeds, folds that hold out each sample once, grids and draws."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.data.dataset.split_rule import SplitRule, held_out_flags, split_rule
from mpitrain.ensemble.beginning import EnsembleRequest, load_settings
from mpitrain.ensemble.plan.members import EnsemblePlan, describe_plan, plan_members
from mpitrain.ensemble.plan.settings import combinations
from mpitrain.errors import ConfigError

DATA = "data.data_path=history.nc"


def plan_of(*overrides: str) -> EnsemblePlan:
    config = load_run_config(None, overrides).config
    return plan_members(config, None, overrides, Path("ens"))


def test_members_are_seeds_times_settings_times_folds():
    plan = plan_of(DATA, "seed=5", "ensemble.members=2", "ensemble.folds=3", "ensemble.grid.model.hidden_size=[4,8]")
    found = [(member.seed, member.varied["model.hidden_size"], member.fold) for member in plan.members]
    assert found == [(seed, size, fold) for seed in (5, 6) for size in (4, 8) for fold in (0, 1, 2)]
    configs = [member.config for member in plan.members if member.config]
    assert [config.output.model_dir for config in configs] == [f"ens/members/{number:04d}" for number in range(12)]
    assert {config.split_seed for config in configs} == {5}
    assert {config.ensemble for config in configs} == {None}


def test_test_files_are_said_to_have_no_effect():
    (line,) = load_settings(EnsembleRequest(overrides=(DATA, "data.test_path=later.nc"))).notices
    assert line.startswith("data.test_path: has no effect on an ensemble, whose members are not tested")


def test_more_seeds_only_add_members():
    few, many = (plan_of(DATA, f"ensemble.members={count}", "ensemble.folds=2").members for count in (2, 3))
    assert many[: len(few)] == few


@pytest.mark.parametrize("num_folds", [2, 3, 7])
def test_every_sample_is_held_out_by_one_fold(num_folds: int):
    rules = [split_rule(load_run_config(None, [f"data.folds={num_folds}", f"data.fold={f}"]).config.split_data)
             for f in range(num_folds)]  # fmt: skip
    flags = np.array([held_out_flags(0, 10_000, rule) for rule in rules])
    assert (flags.sum(axis=0) == 1).all()
    assert abs(flags.sum(axis=1) - 10_000 / num_folds).max() < 400
    # Decided sample by sample, wherever a rank's part begins.
    assert np.array_equal(held_out_flags(4_000, 100, rules[1]), flags[1, 4_000:4_100])


def test_the_first_of_ten_folds_is_the_usual_split():
    rule = split_rule(load_run_config(None, ["data.folds=10"]).config.split_data)
    assert np.array_equal(held_out_flags(0, 999, rule), held_out_flags(0, 999, SplitRule(0.0, 0.1, 0)))


def test_draws_stay_in_their_range_and_do_not_depend_on_other_keys():
    rate, layers = "{low: 0.001, high: 0.1, scale: log}", "{low: 1, high: 3}"
    words = [f"ensemble.random.training.optimizer.learning_rate={rate}", "ensemble.draws=200"]
    alone = load_run_config(None, words).config.ensemble
    both = load_run_config(None, [*words, f"ensemble.random.model.hidden_layers={layers}"]).config.ensemble
    assert alone
    assert both
    drawn = combinations(both, seed=3)
    rates = [one["training.optimizer.learning_rate"] for one in drawn]
    assert rates == [one["training.optimizer.learning_rate"] for one in combinations(alone, seed=3)]
    assert min(rates) >= 0.001
    assert max(rates) <= 0.1
    assert 60 < sum(value < 0.01 for value in rates) < 140  # half of them, in the logarithm
    assert {one["model.hidden_layers"] for one in drawn} == {1, 2, 3}
    assert combinations(both, seed=4) != drawn


def test_a_bad_setting_is_one_member_s_own_problem():
    plan = plan_of(DATA, "ensemble.grid.model.hidden_size=[4,-1]")
    assert [member.config is None for member in plan.members] == [False, True]
    assert plan.members[1].problem == "model.hidden_size=-1: not allowed; give a whole number, at least 1"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["semantics=reference"], "semantics=reference: the results depend on the number of ranks"),
        (["training.batch_size=16"], "training.batch_size=16: is per rank"),
        (["ensemble.folds=3", "data.validation_split=0.2"], "data.validation_split=0.2: not together with"),
        (["training.max_steps=3"], "training.max_steps=3: not available for members"),
        (["ensemble.grid.seed=[1,2]"], "seed belongs to the whole ensemble"),
        (["ensemble.grid.model.hidden_size=8"], "needs a list of values"),
        (["ensemble.random.model.hidden_size={low: 3}"], "needs a list of values, or a range"),
        (["ensemble.draws=3"], "nothing is drawn"),
        (["data.fold=1"], "there are no folds"),
        (["data.folds=3", "data.fold=3"], "folds are numbered from 0"),
    ],
)
def test_what_no_ensemble_can_have_is_refused(words: list[str], expected: str):
    with pytest.raises(ConfigError, match=expected):
        plan_of(DATA, *words)


def test_an_ensemble_is_announced_by_what_its_members_differ_in(tmp_path: Path) -> None:
    members = [SimpleNamespace(setting=number // 2) for number in range(6)]
    plan: Any = SimpleNamespace(section=SimpleNamespace(members=2, folds=None), members=members, folder=tmp_path)
    assert "6 members (2 seeds x 3 settings) on 4 ranks in 1 group;" in describe_plan(plan, 1, 4)
