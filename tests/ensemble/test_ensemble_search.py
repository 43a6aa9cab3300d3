"""A search is a table of settings: the same on any number of ranks, whoever arrives first, and after a kill."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import PROJECT, TIMEOUT_S, launch
from test_ensemble_runs import SMALL, ensemble, start, table_of

from mpitrain.cli.main import main
from mpitrain.config import EnsembleSection, RunConfig, load_run_config
from mpitrain.ensemble.choice import choose_best, render_best
from mpitrain.ensemble.outcome import Outcome
from mpitrain.ensemble.plan.members import EnsemblePlan, Member, plan_members


def plan_of(num_settings: int, **options: object) -> EnsemblePlan:
    section = EnsembleSection.model_validate({"grid": {"model.hidden_size": [*range(1, num_settings + 1)]}, **options})
    config = RunConfig.model_validate({"ensemble": section, "training": {"epochs": 9}, "data": {"data_path": "a.nc"}})
    seeds = range(section.members)
    members = [
        Member(number, seed, None, setting, {"model.hidden_size": setting + 1}, config)
        for number, (seed, setting) in enumerate((seed, setting) for seed in seeds for setting in range(num_settings))
    ]
    return EnsemblePlan(Path("ens"), config, members)


def results_of(plan: EnsemblePlan, score: Callable[[Member], float | None]) -> dict[int, Outcome]:
    scores = {member.number: score(member) for member in plan.members}
    return {number: Outcome(number, "diverged" if one is None else "done", score=one) for number, one in scores.items()}


def test_the_best_setting_is_that_of_the_least_mean_and_ties_go_to_the_first() -> None:
    plan = plan_of(4, members=2)
    failed = choose_best(plan, results_of(plan, lambda member: None if member.number == 0 else 1.0))
    assert failed is not None
    assert (failed.setting, failed.num_settings) == (1, 3)  # a failed member takes its setting out
    best = choose_best(plan, results_of(plan, lambda member: abs(member.setting - 2) + 0.1 * member.seed))
    assert best is not None
    assert [member.number for member in best.members] == [2, 6]
    assert best.score == pytest.approx(0.05)


def test_nothing_is_chosen_before_all_members_have_ended() -> None:
    plan = plan_of(3)
    results = results_of(plan, lambda member: 1.0)
    del results[1]
    assert choose_best(plan, results) is None


@pytest.mark.parametrize(("effect", "expected"), [(0.0, False), (3.0, True)])
def test_the_best_is_compared_with_chance(effect: float, expected: bool):
    ratios = []
    for draw in range(20):
        numbers = random.Random(draw)
        plan = plan_of(8, members=4)
        results = results_of(plan, lambda member: 10 + numbers.gauss(0, 1) - effect * (member.setting == 2))  # noqa: B023
        choice = choose_best(plan, results)
        assert choice is not None
        assert choice.gap is not None
        assert choice.chance_gap
        ratios.append(choice.gap / choice.chance_gap)
    mean = sum(ratios) / len(ratios)
    assert (mean > 2) == expected, ratios
    assert expected or 0.7 < mean < 1.3, ratios


def test_no_search_with_one_seed_knows_chance():
    plan = plan_of(3)
    choice = choose_best(plan, results_of(plan, lambda member: float(member.setting)))
    assert choice is not None
    assert (choice.setting, choice.gap, choice.chance_gap) == (0, 1.0, None)


def test_the_best_settings_of_folds_are_those_of_a_run_of_its_own(tmp_path: Path) -> None:
    section = EnsembleSection.model_validate({"grid": {"model.hidden_size": [4, 8]}, "folds": 3})
    config = RunConfig.model_validate({"ensemble": section, "data": {"data_path": "a.nc"}})
    plan = plan_members(config, None, [], Path("ens"))
    choice = choose_best(plan, results_of(plan, lambda member: -float(member.setting)))
    assert choice is not None
    (tmp_path / "best.yaml").write_text(render_best(choice, plan))
    best = load_run_config(tmp_path / "best.yaml").config
    assert best.model.hidden_size == 8
    assert (best.data.folds, best.data.fold, best.data.entries) == (None, None, ["a.nc"])


SEARCH = ["ensemble.members=2", "training.epochs=4", *SMALL,
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


@pytest.mark.lab
def test_a_search_has_one_table(tmp_path: Path, small_history: Path, request: pytest.FixtureRequest):
    words = [f"data.data_path={small_history}", *SEARCH]
    done = ensemble(None, tmp_path / "one", *words)
    assert done.returncode == 0, done.stderr
    expected = (tmp_path / "one" / "ensemble.csv").read_text()
    for num_ranks in (2, 3, 8) if request.config.getoption("--full") else (3,):
        folder = tmp_path / f"delayed{num_ranks}"
        arguments = ["-c", DELAYED, "ensemble", f"output.model_dir={folder}", *words]
        done = launch(arguments, num_ranks)
        assert done.returncode == 0, done.stderr
        assert (folder / "ensemble.csv").read_text() == expected
    best = load_run_config(tmp_path / "one/best.yaml").config
    assert best.ensemble is None
    losses: dict[str, float] = {}
    for row in table_of(tmp_path / "one"):
        rate = row["training.optimizer.learning_rate"]
        losses[rate] = losses.get(rate, 0.0) + float(row["validation_loss"])
    assert len(losses) == 4
    assert str(best.training.optimizer.learning_rate) == min(losses, key=losses.__getitem__)
    assert "the gap expected by chance" in (tmp_path / "one/best.yaml").read_text()
    assert yaml.safe_load((tmp_path / "one/best.yaml").read_text())["data"]["data_path"] == str(small_history)


@pytest.mark.lab
def test_a_killed_search_has_the_same_table(tmp_path: Path, small_history: Path):
    words = [f"data.data_path={small_history}", *SEARCH, "training.epochs=80"]
    folder = tmp_path / "killed"
    running = start(2, folder, *words)
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(list(folder.glob("members/*/member.json"))) < 3 and running.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    assert len(list(folder.glob("members/*/member.json"))) < 8
    running.communicate(timeout=TIMEOUT_S)
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", "--resume"], 3)
    assert done.returncode == 0, done.stderr
    assert ensemble(2, tmp_path / "whole", *words).returncode == 0
    assert (folder / "ensemble.csv").read_text() == (tmp_path / "whole" / "ensemble.csv").read_text()


def test_plan_members_of_a_search_are_pure(tmp_path: Path):
    words = ["data.data_path=a.nc", *SEARCH]
    config = load_run_config(None, words).config
    first, again = (plan_members(config, None, words, tmp_path) for _ in range(2))
    assert first == again


def test_an_older_file_with_halving_loads_with_a_line_and_its_folder_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ens").mkdir()
    Path("ens/config.yaml").write_text("ensemble: {members: 2, halving: 3, first_epochs: 1, halving_block: null}\n")
    loaded = load_run_config(Path("ens/config.yaml"))
    assert loaded.config.ensemble == EnsembleSection(members=2)
    (line,) = loaded.notices
    assert line.startswith("ensemble.halving=3: was removed: all settings are trained to the end")
    assert main(["ensemble", "--resume", "output.model_dir=ens"]) == 2
    assert "ens was started with ensemble.halving, which no longer exists; train all its" in capsys.readouterr().err
    Path("plain.yaml").write_text("ensemble: {members: 2, halving: null, first_epochs: 1, halving_block: null}\n")
    assert load_run_config(Path("plain.yaml")).notices == ()


@pytest.mark.lab
def test_the_search_with_optuna_in_the_help_is_played(tmp_path: Path, small_history: Path) -> None:
    pytest.importorskip("optuna")
    (text,) = re.findall(
        r"```python\n(.*?)```", (PROJECT / "mpitrain" / "help" / "ensembles.md").read_text(), re.DOTALL
    )
    (tmp_path / "history.nc").symlink_to(small_history)
    done = launch(["-c", text], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'rate': 0.")
    states = [path.name for path in (tmp_path / "search").iterdir()]
    assert len(states) == 9
    epochs = [len((tmp_path / "search" / name / "metrics.jsonl").read_text().splitlines()) for name in states]
    assert max(epochs) == 9
    assert min(epochs) < 9  # some are stopped early
