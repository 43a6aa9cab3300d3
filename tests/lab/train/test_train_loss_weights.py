"""Weights of the loss, by target and by area: what counts 0 has no influence, what counts alike changes nothing."""

import json

import netCDF4
import numpy as np
import pytest
from many_runs import run_many

SHAPE = (4, 12, 16)
ENGINES = ("compiled", "traced", "eager", "ddp")


def write_two(path, second, area, spoilt=0.0):
    """x and z; y follows x, and `second` is another target; cells of no area hold `spoilt` more."""
    rng = np.random.default_rng(7)
    x, z = rng.standard_normal((2, *SHAPE))
    y = x + 0.1 * z + spoilt * (area == 0)
    grid, place = ("time", "nj", "ni"), ("nj", "ni")
    fields = {"x": (grid, x), "z": (grid, z), "y": (grid, y), "second": (grid, second), "area": (place, area)}
    with netCDF4.Dataset(str(path), "w") as file:
        for name, size in zip(grid, SHAPE, strict=True):
            file.createDimension(name, size)
        for name, (axes, values) in fields.items():
            file.createVariable(name, "f4", axes)[:] = values
    return path


def outcome(folder):
    """The hash of a run's weights, and all that its metrics say of losses."""
    record = json.loads((folder / "run_record.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return record["result"]["weights_sha256"], [(one["train_loss"], one["validation_loss"]) for one in lines]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders by name, all trained in one launch on two ranks."""
    folder = tmp_path_factory.mktemp("weights")
    rng = np.random.default_rng(1)
    even, halves = np.full(SHAPE[1:], 4096.0), np.where(np.arange(SHAPE[2]) < 8, 3e9, 0.0) * np.ones(SHAPE[1:])
    one, other = rng.standard_normal((2, *SHAPE))
    files = {
        "even": write_two(folder / "even.nc", one, even),
        "other": write_two(folder / "other.nc", 9 * other, even),
        "halves": write_two(folder / "halves.nc", one, halves),
        "spoilt": write_two(folder / "spoilt.nc", one, halves, spoilt=50.0),
    }
    by_area = ("training.area_weighted_loss=true", "data.area_variable=area")
    wanted = {
        "plain": ("even",),
        "doubled": ("even", "training.loss_weights={y: 2, second: 2}"),
        "without": ("even", "training.loss_weights={second: 0}"),
        "without_other": ("other", "training.loss_weights={second: 0}"),
        "even_area": ("even", *by_area),
        "halves": ("halves", *by_area),
        "spoilt": ("spoilt", *by_area),
        "streamed": ("spoilt", *by_area, "data.streaming=true"),
        "streamed_halves": ("halves", *by_area, "data.streaming=true"),
        **{f"weighed_{engine}": ("even", "training.loss_weights={second: 0.25}", f"training.engine={engine}", *by_area)
           for engine in ENGINES},
        "weighed_huber": ("even", "training.loss_weights={second: 0.25}", "training.loss_function=huber"),
    }  # fmt: skip
    names = ("variables.input_variables=[x, z]", "variables.output_variables=[y, second]")
    common = (*names, "training.epochs=3", "--lr", "0.02", "model.hidden_size=8", "model.name=mlp")
    jobs = [
        ["train", "--data", str(files[data]), *common, *settings, f"output.model_dir={folder / name}"]
        for name, (data, *settings) in wanted.items()
    ]
    done = dict(zip(wanted, run_many(folder / "jobs", 2, jobs), strict=True))
    assert not [one.our_lines for one in done.values() if set(one.codes) != {0}]
    return {name: (*outcome(folder / name), done[name].stdout) for name in wanted}


def test_equal_weights_change_no_bit(runs):
    for name in ("doubled", "even_area"):
        assert runs[name][:2] == runs["plain"][:2]


def test_a_target_that_counts_0_has_no_influence(runs):
    assert runs["without"][:2] == runs["without_other"][:2]
    assert runs["without"][0] != runs["plain"][0]
    assert runs["without"][1][-1][1] < 0.5 * runs["plain"][1][-1][1]  # the noise is not in the loss any more


def test_cells_of_no_area_have_no_influence_in_memory_and_streamed(runs):
    assert runs["halves"][:2] == runs["spoilt"][:2]
    assert runs["streamed_halves"][:2] == runs["streamed"][:2]
    assert runs["halves"][0] != runs["plain"][0]


def test_all_engines_weigh_alike(runs):
    losses = {engine: np.array(runs[f"weighed_{engine}"][1]) for engine in ENGINES}
    for engine in ENGINES[1:]:
        np.testing.assert_allclose(losses[engine], losses["compiled"], rtol=2e-4)


def test_the_mean_predictor_is_weighed_like_the_loss_and_is_there_for_every_loss(runs):
    # y counts 1, second 0.25, each in its own deviation: the mean predictor's loss is 1, but for what is held out
    mean = float(runs["weighed_compiled"][2].split("mean predictor's ")[1].split()[0])
    assert 0.85 < mean < 1.15
    assert "of the mean predictor's" in runs["weighed_huber"][2]


def test_wrong_weights_are_one_line(tmp_path):
    data = write_two(tmp_path / "data.nc", np.ones(SHAPE), -np.ones(SHAPE[1:]))
    train = ["train", "--data", str(data), "variables.input_variables=[x]", "variables.output_variables=[y]"]
    by_area = [*train, "training.area_weighted_loss=true"]
    jobs = {
        "training.loss_weights: 'yy' is not a target; the targets are y": [*train, "training.loss_weights={yy: 1}"],
        "training.loss_weights: all weights are 0; give at least one target": [*train, "training.loss_weights={y: 0}"],
        "give a mapping of targets to numbers, at least 0": [*train, "training.loss_weights={y: -1}"],
        "no variable 'cell', which data.area_variable names": [*by_area, "data.area_variable=cell"],
        "variable 'area', which data.area_variable names, has no value above 0": [*by_area, "data.area_variable=area"],
        "variable 'z', which data.area_variable names, has values below 0": [*by_area, "data.area_variable=z"],
    }
    for expected, done in zip(jobs, run_many(tmp_path / "jobs", None, list(jobs.values())), strict=True):
        assert done.codes == [2]
        assert len(done.our_lines) == 1
        assert expected in done.our_lines[0]
