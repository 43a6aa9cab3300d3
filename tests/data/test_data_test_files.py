"""`data.test_path`: files that no training sees; what is reached on them is in the summary, the metrics, the report."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import launch
from field_files import config_of, write_netcdf
from played_ranks import on_played_ranks, played_ranks_of
from user_files import smooth

from mpitrain.config import load_run_config
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError
from mpitrain.inference.quality.evaluation import Evaluator
from mpitrain.inference.quality.skill import skill_on_files
from mpitrain.train.losses.array_loss import ArrayLoss

NAMES = ("variables.input_variables=[x]", "variables.output_variables=[y, z]")
# A network so small that it cannot learn the noise of z by heart.
SMALL = (
    "model.hidden_layers=1",
    "model.hidden_size=16",
    "model.hidden_activation=relu",
    "training.global_batch_size=64",
    "training.scheduler=null",
)
ALL_EPOCHS = ("training.early_stopping_patience=null",)


def write_line(path, seed, shift=0.0, **attributes):
    """y = 2 x + 0.1 noise + shift, and z, which is noise alone."""
    rng = np.random.default_rng(seed)
    x, noise, z = (smooth(rng, 4, 10, 12) for _ in range(3))
    fields = {"x": x, "y": 2 * x + 0.1 * noise + shift, "z": z}
    grid = ("time", "nj", "ni")
    return write_netcdf(path, {name: (grid, values.astype("f4")) for name, values in fields.items()}, **attributes)


def train(folder, num_ranks, test="test.nc"):
    run = [
        "-m",
        "mpitrain",
        "train",
        "--data",
        "a.nc",
        *NAMES,
        *SMALL,
        *ALL_EPOCHS,
        f"data.test_path={test}",
        "--epochs",
        "40",
    ]
    return launch([*run, "--output", f"of_{num_ranks}", "--lr", "0.01"], num_ranks=num_ranks, cwd=folder)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_files")
    write_line(folder / "a.nc", 1)
    write_line(folder / "test.nc", 2, shift=0.25)
    done = {number: train(folder, number) for number in (1, 3)}
    assert all(one.returncode == 0 for one in done.values()), done[3].stderr
    return folder, done


def test_the_skill_on_files_of_their_own_is_told_the_same_on_any_number_of_ranks(runs):
    folder, done = runs
    records = [metrics(folder / f"of_{number}")[-1] for number in (1, 3)]
    assert records[0] == records[1]
    skill = records[0]["test_targets"]["y"]
    assert abs(skill["bias"] + 0.25) < 0.05  # the test files are warmer than all that was trained on
    assert np.isclose(skill["rmse"], np.hypot(0.25, 0.1), rtol=0.1)
    assert np.isclose(skill["r2"], 1 - skill["rmse"] ** 2 / (4 + 0.01), rtol=1e-3)
    assert records[0]["num_test_samples"] == 480
    assert f"Test     loss {records[0]['test_loss']:.4e}, " in done[3].stdout
    assert f"         y: RMSE {skill['rmse']:.6g}, bias {skill['bias']:.6g}, r2 " in done[3].stdout
    record = json.loads((folder / "of_3" / "run_record.json").read_text())
    assert record["result"]["test_loss"] == records[0]["test_loss"]
    assert record["result"]["split"] == "single samples at random, 10 % by seed 0"
    page = (folder / "of_3" / "report.html").read_text()
    assert "<h2>Test</h2>" in page
    assert "single samples at random, 10 % by seed 0" in page


@pytest.mark.lab
def test_a_target_that_is_no_better_than_its_mean_is_named(runs):
    _, done = runs
    assert "NO BETTER than always predicting the mean for z. Try " in done[3].stdout


@pytest.mark.lab
def test_a_report_made_anew_and_a_resumed_run_go_by_the_epochs(runs):
    folder, _ = runs
    assert launch(["-m", "mpitrain", "report", "of_1"], cwd=folder).returncode == 0
    again = launch(["-m", "mpitrain", "train", "of_1/config.yaml", "--resume", "--epochs", "41"], cwd=folder)
    assert again.returncode == 0, again.stderr
    assert [len(metrics(folder / f"of_{number}")) for number in (1, 3)] == [43, 41]


@pytest.mark.lab
def test_a_test_file_that_is_trained_on_or_lacks_a_variable_is_one_line_before_the_training(tmp_path):
    write_line(tmp_path / "a.nc", 1)
    write_netcdf(tmp_path / "test.nc", {"x": (("time", "nj", "ni"), np.ones((1, 2, 2), dtype="f4"))})
    lacking = train(tmp_path, 2)
    assert (lacking.returncode, len(lacking.our_lines)) == (2, 1)
    assert "test.nc: no variable 'y'" in lacking.our_lines[0]
    assert not (tmp_path / "of_2").exists()
    same = train(tmp_path, 2, "['*.nc']")
    assert (same.returncode, len(same.our_lines)) == (2, 1)
    assert "a.nc: is in data.test_path and in data.data_path or data.validation_path" in same.our_lines[0]


def test_test_files_beside_synthetic_data_are_refused():
    with pytest.raises(
        ConfigError, match=r"data.test_path=test.nc: needs data.data_path: a run on synthetic data has no test files"
    ):
        load_run_config(None, ["data.test_path=test.nc"])
    assert config_of("a.nc", "data.test_path=test.nc").data.test_entries == ["test.nc"]


@pytest.mark.parametrize("weighs", [False, True])
def test_r2_on_test_files_is_about_their_own_mean(tmp_path, weighs):
    """Not about the mean that was trained on, 1000 here: it is 1 less the squared errors over the tests' own squares.

    The second row has three times the area of the first; answers are too large by 1/2 there, and exact in the first.
    """
    x = np.float32([[[0, 4]], [[1, 11]], [[2, 6]]])
    y = np.concatenate([x, 3 + x], axis=1)
    grid, areas = ("time", "nj", "ni"), np.array([[1.0, 1.0], [3.0, 3.0]])
    fields = {"x": (grid, y + np.float32([[0], [0.5]])), "y": (grid, y), "area": (grid[1:], areas)}
    path = write_netcdf(tmp_path / "t.nc", fields)
    by_area = ("training.area_weighted_loss=true", "data.area_variable=area") if weighs else ()
    config = config_of(path, *by_area)
    same: Any = SimpleNamespace(learnt=lambda inputs: inputs, restore=lambda learnt: learnt)
    evaluator = Evaluator(same, ArrayLoss(config.training.loss_function), np.array([1000.0]))

    def body(communicator):
        ranks = played_ranks_of(communicator)
        return skill_on_files(evaluator, np.array([0.0]), open_source(selection_of(config), 16), ranks)

    alone, together = (on_played_ranks(count, body) for count in (1, 2))
    assert alone[0] == together[0] == together[1]
    (skill,) = alone[0].targets
    weights = np.broadcast_to(areas if weighs else np.ones((2, 2)), y.shape)
    own_mean = np.average(y, weights=weights)
    squared_errors = 0.25 * weights[:, 1].sum()
    assert skill.r2 == pytest.approx(1 - squared_errors / (weights * (y - own_mean) ** 2).sum(), rel=1e-9)
    assert skill.bias == pytest.approx(0.5 * weights[:, 1].sum() / weights.sum(), rel=1e-14)
    assert skill.rmse == pytest.approx(np.sqrt(squared_errors / weights.sum()), rel=1e-14)
    assert alone[0].mean_predictor_loss == pytest.approx(np.average((y - 1000) ** 2, weights=weights), rel=1e-6)
