"""Searches decide by scores alone: the same history whoever arrives first, on any number of ranks, after a kill."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import yaml
from conftest import TIMEOUT_S, launch
from test_ensemble_runs import SMALL, ensemble, start, table_of

from mpitrain.config import EnsembleSection, RunConfig, load_run_config
from mpitrain.ensemble.choice import choose_best, stage_history
from mpitrain.ensemble.outcome import Outcome
from mpitrain.ensemble.plan.members import EnsemblePlan, Member, plan_members
from mpitrain.ensemble.plan.search import Search, Stage, plan_search, rungs_of


def plan_of(num_settings: int, **options: object) -> EnsemblePlan:
    section = EnsembleSection.model_validate({"grid": {"model.hidden_size": [*range(1, num_settings + 1)]}, **options})
    config = RunConfig.model_validate({"ensemble": section, "training": {"epochs": 9}, "data": {"data_path": "a.nc"}})
    seeds = range(section.members)
    members = [
        Member(number, seed, None, setting, {"model.hidden_size": setting + 1}, config)
        for number, (seed, setting) in enumerate((seed, setting) for seed in seeds for setting in range(num_settings))
    ]
    return EnsemblePlan(Path("ens"), config, members)


def outcome(member: Member, rung: int, score: float | None) -> Outcome:
    return Outcome(member.number, rung, "diverged" if score is None else "done", score=score)


def test_rungs_grow_by_the_factor_and_end_with_all_epochs():
    assert rungs_of(EnsembleSection(), 9) == [9]
    assert rungs_of(EnsembleSection(halving=3), 10) == [1, 3, 9, 10]
    assert rungs_of(EnsembleSection(halving=2, first_epochs=3), 12) == [3, 6, 12]


def played(search: Search, score: object, shuffled: int | None = None) -> dict[tuple[int, int], Outcome]:
    """Results of a search whose members arrive in some order: `score(member, rung)`."""
    results: dict[tuple[int, int], Outcome] = {}
    for rung in range(len(search.rungs)):
        for block in range(search.num_blocks):
            members = search.members_of(Stage(block, rung), results)
            if shuffled is not None:
                random.Random(shuffled).shuffle(members)
            new = {(one.number, rung): outcome(one, rung, score(one, rung)) for one in members}  # type: ignore[operator]
            results |= new
    return results


def test_the_best_go_on_with_all_their_seeds():
    search = plan_search(plan_of(9, halving=3, members=2))
    results = played(search, lambda member, rung: abs(member.setting - 4) + 0.1 * member.seed)
    assert stage_history(search, results) == [
        "block 0, 1 epochs: settings 0, 1, 2, 3, 4, 5, 6, 7, 8",
        "block 0, 3 epochs: settings 3, 4, 5",
        "block 0, 9 epochs: settings 4",
    ]
    assert {number for number, rung in results if rung == 2} == {4, 13}


def test_a_failed_member_takes_its_setting_out_and_ties_go_to_the_first():
    search = plan_search(plan_of(4, halving=2, members=2))
    results = played(search, lambda member, rung: None if member.number == 0 else 1.0)
    assert search.settings_of(Stage(0, 1), results) == [1, 2]


def test_blocks_decide_by_themselves():
    search = plan_search(plan_of(7, halving=3, halving_block=3))
    results = played(search, lambda member, rung: float(member.setting))
    assert [search.settings_of(Stage(block, 2), results) for block in range(3)] == [[0], [3], [6]]
    assert stage_history(search, results) == stage_history(
        search, played(search, lambda member, rung: float(member.setting), shuffled=5)
    )


@pytest.mark.parametrize(("effect", "expected"), [(0.0, False), (3.0, True)])
def test_the_best_is_compared_with_chance(effect: float, expected: bool):
    ratios = []
    for draw in range(20):
        numbers = random.Random(draw)
        plan = plan_of(8, members=4)
        search = plan_search(plan)
        results = played(search, lambda member, rung: 10 + numbers.gauss(0, 1) - effect * (member.setting == 2))  # noqa: B023
        choice = choose_best(plan, search, results)
        assert choice is not None
        assert choice.gap is not None
        assert choice.chance_gap
        ratios.append(choice.gap / choice.chance_gap)
    mean = sum(ratios) / len(ratios)
    assert (mean > 2) == expected, ratios
    assert expected or 0.7 < mean < 1.3, ratios


def test_no_search_with_one_seed_knows_chance():
    plan = plan_of(3)
    search = plan_search(plan)
    choice = choose_best(plan, search, played(search, lambda member, rung: float(member.setting)))
    assert choice is not None
    assert (choice.setting, choice.gap, choice.chance_gap) == (0, 1.0, None)


HALVING = ["ensemble.members=2", "ensemble.halving=2", "training.epochs=4", *SMALL,
           "ensemble.random.training.optimizer.learning_rate={low: 0.0001, high: 0.1, scale: log}",
           "ensemble.draws=4"]  # fmt: skip
# Ranks that sleep for a random time before each member: what arrives first is another one each time.
DELAYED = """
import random, sys, time
import mpitrain.ensemble.training.worker as worker
train_member = worker.train_member
def delayed(*arguments):
    time.sleep(random.random() * 0.3)
    return train_member(*arguments)
worker.train_member = delayed
from mpitrain.cli.main import main
sys.exit(main())
"""


def history_of(folder: Path) -> tuple[str, list[str]]:
    return (folder / "ensemble.csv").read_text(), (folder / "search.txt").read_text().splitlines()


@pytest.mark.lab
def test_a_search_has_one_history(tmp_path: Path, small_history: Path, request: pytest.FixtureRequest):
    words = [f"data.data_path={small_history}", *HALVING]
    done = ensemble(None, tmp_path / "one", *words)
    assert done.returncode == 0, done.stderr
    expected = history_of(tmp_path / "one")
    assert [row["status"] for row in table_of(tmp_path / "one")].count("given up") == 6
    for num_ranks in (2, 3, 8) if request.config.getoption("--full") else (3,):
        folder = tmp_path / f"delayed{num_ranks}"
        arguments = ["-c", DELAYED, "ensemble", f"output.model_dir={folder}", *words]
        done = launch(arguments, num_ranks)
        assert done.returncode == 0, done.stderr
        assert history_of(folder) == expected
    best = load_run_config(tmp_path / "one/best.yaml").config
    assert best.ensemble is None
    rates = {row["training.optimizer.learning_rate"] for row in table_of(tmp_path / "one") if row["status"] == "done"}
    assert rates == {str(best.training.optimizer.learning_rate)}
    assert "what chance gives" in (tmp_path / "one/best.yaml").read_text()
    assert yaml.safe_load((tmp_path / "one/best.yaml").read_text())["data"]["data_path"] == str(small_history)


@pytest.mark.lab
def test_a_killed_search_has_the_same_history(tmp_path: Path, small_history: Path):
    words = [f"data.data_path={small_history}", *HALVING, "training.epochs=80", "ensemble.first_epochs=20"]
    folder = tmp_path / "killed"
    running = start(2, folder, *words)
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(list(folder.glob("members/*/member.json"))) < 3 and running.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=TIMEOUT_S)
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", "--resume"], 3)
    assert done.returncode == 0, done.stderr
    assert ensemble(2, tmp_path / "whole", *words).returncode == 0
    assert history_of(folder) == history_of(tmp_path / "whole")


def test_plan_members_of_a_search_are_pure(tmp_path: Path):
    words = ["data.data_path=a.nc", *HALVING]
    config = load_run_config(None, words).config
    first, again = (plan_members(config, None, words, tmp_path) for _ in range(2))
    assert first == again
