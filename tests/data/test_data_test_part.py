"""A part of the samples that neither trains nor chooses the epoch: `data.test_split`."""

import json
import re

import netCDF4
import numpy as np
import pytest
from conftest import launch
from field_files import config_of

import mpitrain
from mpitrain.cli.main import main
from mpitrain.config import DataSection
from mpitrain.data import TEST, TRAINING, VALIDATION
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.random_streams import Stream, keyed_uniform
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError

RANDOM = np.random.default_rng(5)
TINY = ("variables.input_variables=[x]", "variables.output_variables=[y]", "model.name=mlp", "model.hidden_size=3",
        "training.global_batch_size=512", "training.virtual_ranks=4", "training.scheduler=null")  # fmt: skip


def write_table(path, num_rows, num_missing=0, **more):
    """A table without times: y = 2 x and noise of 0.1; the first values of x are missing."""
    x = RANDOM.normal(size=num_rows)
    y = 2 * x + 0.1 * RANDOM.normal(size=num_rows)
    x[:num_missing] = np.nan
    np.savez(path, x=x, y=y, **more)
    return path


def write_series(path, num_days):
    return write_table(path, num_days, when=np.datetime64("2001-01-01") + np.arange(num_days))


def planned(path, *settings):
    config = config_of(path, *settings)
    source = open_source(selection_of(config))
    return plan_split(config.split_data, source), source.num_points


def roles_of(rule, num_samples):
    return rule.roles(np.arange(num_samples), 0)


@pytest.mark.parametrize(
    ("num_rows", "num_missing", "settings", "share"),
    [
        (5000, 0, (), 0.1),
        (4999, 0, (), 0.0),
        (5500, 501, (), 0.0),
        (5501, 501, (), 0.1),
        (5000, 0, ("data.validation_split=0",), 0.0),
        (5000, 0, ("data.folds=5",), 0.0),
        (5000, 0, ("data.rules=1",), 0.0),
        (6000, 0, ("data.max_patterns=4000",), 0.0),
        (12000, 6000, ("data.max_patterns=8000",), 0.0),
        (12000, 1000, ("data.max_patterns=8000",), 0.1),
        (6000, 0, ("data.validation_split=0.9",), 0.0),
        (6000, 0, ("data.validation_split=0.4",), 0.1),
        (5000, 0, ("data.test_split=0",), 0.0),
        (40, 0, ("data.test_split=0.25",), 0.25),
    ],
)
def test_a_tenth_is_kept_from_five_thousand_usable_samples_on(tmp_path, num_rows, num_missing, settings, share):
    rule, _ = planned(write_table(tmp_path / "f.npz", num_rows, num_missing), *settings)
    assert rule.test == share
    assert rule.settled["test_split"] == share


def test_of_samples_one_by_one_those_with_the_largest_numbers_are_the_test(tmp_path):
    path = write_table(tmp_path / "f.npz", 6000)
    rule, _ = planned(path, "data.split=random")
    numbers, roles = keyed_uniform((0, Stream.VALIDATION), 6000), roles_of(rule, 6000)
    assert np.array_equal(roles == TEST, numbers >= 0.9)
    assert np.array_equal(roles == VALIDATION, numbers < 0.1)
    assert np.array_equal(roles == TRAINING, (numbers >= 0.1) & (numbers < 0.9))


def test_of_a_series_whole_ranges_of_time_are_the_test_and_others_validate_as_before(tmp_path):
    path = write_series(tmp_path / "f.npz", 6000)
    rule, without = planned(path)[0], planned(path, "data.test_split=0")[0]
    roles = roles_of(rule, 6000).reshape(20, 300)
    assert (roles == roles[:, :1]).all()
    assert np.array_equal(np.bincount(roles[:, 0], minlength=4), [0, 16, 2, 2])
    assert np.array_equal(roles_of(without, 6000) == VALIDATION, roles.reshape(-1) == VALIDATION)
    assert rule.description == without.description
    date = r"\d{4}-\d\d-\d\d"
    assert re.fullmatch(rf"2 of 20 blocks of time \({date} to {date}, {date} to {date}\)", rule.test_text)


def test_of_few_groups_there_is_a_test_only_where_it_is_asked_for(tmp_path):
    given = "data.split=group", "data.group=basin"
    for num_groups, expected in ((4, 0), (5, 0), (10, 1)):
        path = write_table(tmp_path / "f.npz", 6000, basin=np.arange(6000) % num_groups)
        assert (roles_of(planned(path, *given)[0], 6000) == TEST).sum() == expected * 6000 // num_groups
        asked = roles_of(planned(path, *given, "data.test_split=0.1")[0], 6000)
        assert (asked == TEST).sum() == (asked == VALIDATION).sum() == 6000 // num_groups
    path = write_table(tmp_path / "f.npz", 6000, basin=np.arange(6000) % 2)
    with pytest.raises(ConfigError, match=r"2 groups of 'basin' are too few to train, validate and test"):
        planned(path, *given, "data.test_split=0.1")


def test_of_regions_a_test_is_kept_too(tmp_path):
    x = RANDOM.normal(size=(4, 40, 60))
    np.savez(tmp_path / "f.npz", x=x, y=x)
    rule, num_points = planned(tmp_path / "f.npz", "data.split=region")
    roles = roles_of(rule, num_points).reshape(4, 2400)
    assert (roles == roles[:1]).all()
    assert 0.05 < (roles == TEST).mean() < 0.15
    assert re.fullmatch(r"\d+ of 64 blocks of the grid", rule.test_text)


@pytest.mark.parametrize("other", ["data.folds=5", "data.validation_path=b.npz"])
def test_a_test_part_beside_other_choices_is_refused(tmp_path, other):
    path = write_table(tmp_path / "f.npz", 40)
    with pytest.raises(ConfigError, match=r"not together with data\.\w+: give data.test_split=0"):
        config_of(path, "data.test_split=0.2", other)
    with pytest.raises(ConfigError, match=r"no training samples are left"):
        config_of(path, "data.test_split=0.2", "data.validation_split=0.8")


def result_of(folder):
    return json.loads((folder / "run_record.json").read_text())["result"]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_the_skill_is_that_of_the_samples_which_predict_calls_test_on_any_number_of_ranks(tmp_path, streaming):
    path = write_series(tmp_path / "f.npz", 6000)
    found = []
    for ranks in (1, 3):
        folder = tmp_path / f"of{ranks}"
        given = "--data", path, *TINY, f"data.streaming={streaming}", "--epochs", "2", "--output", folder
        done = launch(["-m", "mpitrain", "train", *map(str, given)], ranks)
        assert done.returncode == 0, done.stderr
        result = result_of(folder)
        found.append((result["weights_sha256"], result["test_skill"], result["test_loss"]))
    assert found[0] == found[1]
    assert re.search(
        r"kept for a test at the end: 2 of 20 blocks of time \(.*\), 600 samples; data.test_split=0", done.stderr
    )
    assert re.search(
        r"Test     loss .*; 600 samples of a part used neither for training nor for choosing the epoch", done.stdout
    )
    assert "4,800 for training, 600 for validation, 600 for a test" in done.stdout
    assert "test_split: 0.1\n" in (folder / "config.yaml").read_text()
    assert main(["predict", str(folder), "--data", str(path), "--output", str(tmp_path / "p.nc")]) == 0
    with netCDF4.Dataset(tmp_path / "p.nc") as file:
        roles, predicted = (file[name][:].reshape(-1) for name in ("sample_role", "y_predicted"))
    assert np.array_equal(np.bincount(roles, minlength=4), [0, 4800, 600, 600])
    with np.load(path) as columns:
        errors = (predicted - columns["y"])[roles == TEST]
    skill = found[0][1]["y"]
    ranges = [np.sqrt((one**2).mean()) for one in errors.reshape(2, 300)]
    assert re.search(rf"  y: RMSE .*; RMSE {min(ranges):.4g} to {max(ranges):.4g} over the ranges\n", done.stdout)
    assert "other times may have larger errors: mpitrain ensemble with ensemble.folds=10" in done.stdout
    assert np.isclose(skill["rmse"], np.sqrt((errors**2).mean()), rtol=1e-6)
    assert np.isclose(skill["bias"], errors.mean(), rtol=1e-4, atol=1e-8)


def test_the_skill_is_that_of_each_group_too(tmp_path, capsys):
    """Groups whose rows lie among each other, with an error that grows from group to group."""
    basin = np.arange(6000) % 20
    x = RANDOM.normal(size=6000)
    np.savez(tmp_path / "f.npz", x=x, y=basin * np.sign(RANDOM.normal(size=6000)), basin=basin)
    given = "data.split=group", "data.group=basin", "--data", str(tmp_path / "f.npz"), *TINY, "--epochs", "1"
    assert main(["train", *given, "--output", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().out
    held = re.search(r"Test .*", told) and planned(tmp_path / "f.npz", *given[:2])[0].roles(np.arange(6000), 0) == TEST
    low, high = sorted(np.unique(basin[held]))
    found = re.search(r"  y: RMSE .*; RMSE (\S+) to (\S+) over the groups\n", told)
    assert np.allclose([float(one) for one in found.groups()], [low, high], atol=0.7)
    assert "other times may have larger errors" not in told


def test_the_same_samples_in_memory_and_streamed(tmp_path):
    path = write_table(tmp_path / "f.npz", 6000, num_missing=300)
    for streaming in ("false", "true"):
        given = "--data", str(path), *TINY, f"data.streaming={streaming}", "--epochs", "1", "--output"
        assert main(["train", *given, str(tmp_path / streaming), "data.split=random"]) == 0
        assert (
            main(["predict", str(tmp_path / streaming), "--data", str(path), "--output", f"{tmp_path}/{streaming}.nc"])
            == 0
        )
    roles = []
    for streaming in ("false", "true"):
        with netCDF4.Dataset(tmp_path / f"{streaming}.nc") as file:
            roles.append(file["sample_role"][:].reshape(-1))
    assert np.array_equal(*roles)
    assert (roles[0] == TEST).sum() == result_counts(tmp_path / "true")


def result_counts(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]["num_test_samples"]


def test_a_run_of_before_goes_on_without_a_test_and_a_new_one_with_its_own(tmp_path, monkeypatch, capsys):
    """Neither checkpoints nor settings of before tell of a test; what is there since is the run's."""
    import mpitrain.runs.prepare as prepare_module
    from mpitrain.train.checkpoint.store import TEST_KEY

    settings_of, path = prepare_module.checkpoint_settings, write_table(tmp_path / "f.npz", 6000)
    given = ["train", "--data", str(path), *TINY, "data.split=random", "--output"]

    def without_test(*words, **named):
        return {key: value for key, value in settings_of(*words, **named).items() if key != TEST_KEY}

    with monkeypatch.context() as patched:
        patched.setattr(prepare_module, "checkpoint_settings", without_test)
        assert main([*given, str(tmp_path / "old"), "--epochs", "1", "data.test_split=0"]) == 0
    config = tmp_path / "old" / "config.yaml"
    config.write_text(config.read_text().replace("  test_split: 0.0\n", ""))
    assert main(["predict", str(tmp_path / "old"), "--data", str(path), "--output", str(tmp_path / "old.nc")]) == 0
    with netCDF4.Dataset(tmp_path / "old.nc") as file:
        assert not (file["sample_role"][:] == TEST).any()
    assert main([*given, str(tmp_path / "old"), "--epochs", "2", "--resume"]) == 0
    assert main([*given, str(tmp_path / "whole"), "--epochs", "2", "data.test_split=0"]) == 0
    assert result_of(tmp_path / "old")["weights_sha256"] == result_of(tmp_path / "whole")["weights_sha256"]
    assert main([*given, str(tmp_path / "new"), "--epochs", "1"]) == 0
    assert main([*given, str(tmp_path / "new"), "--epochs", "2", "--resume"]) == 0
    assert main([*given, str(tmp_path / "both"), "--epochs", "2"]) == 0
    assert result_of(tmp_path / "new")["weights_sha256"] == result_of(tmp_path / "both")["weights_sha256"]
    assert result_of(tmp_path / "new")["test_skill"] == result_of(tmp_path / "both")["test_skill"]
    capsys.readouterr()
    assert main([*given, str(tmp_path / "new"), "--epochs", "3", "--resume", "data.test_split=0"]) == 2
    assert "written with data.test_split=0.1, this run has 0" in capsys.readouterr().err


def test_files_that_are_gone_at_the_end_cost_the_test_alone(tmp_path, monkeypatch, capsys):
    import mpitrain.runs.finish as finish_module

    path, save = write_table(tmp_path / "f.npz", 6000), finish_module.save_trained

    def save_and_remove(*given):
        save(*given)
        path.unlink()

    monkeypatch.setattr(finish_module, "save_trained", save_and_remove)
    assert main(["train", "--data", str(path), *TINY, "--epochs", "1", "--output", str(tmp_path / "run")]) == 0
    assert "the test at the end is left out: " in capsys.readouterr().err
    assert result_of(tmp_path / "run")["test_skill"] == {}
    assert (tmp_path / "run" / "report.html").is_file()
    assert (tmp_path / "run" / "model.pt").is_file()


def test_members_of_an_ensemble_train_on_what_a_run_keeps_for_a_test(tmp_path, capsys):
    """Also those that begin with the settings of a run, which record its test; its folds hold out all of it."""
    path = write_table(tmp_path / "f.npz", 6000)
    assert main(["train", "--data", str(path), *TINY, "--epochs", "1", "--output", str(tmp_path / "run")]) == 0
    settings, many = str(tmp_path / "run" / "config.yaml"), str(tmp_path / "many")
    capsys.readouterr()
    assert main(["ensemble", settings, "ensemble.folds=3", "--output", many]) == 0
    assert "data.test_split: has no effect on an ensemble, whose members are not tested" in capsys.readouterr().err
    for member in range(3):
        assert "test_split: 0.0\n" in (tmp_path / "many" / "members" / f"{member:04d}" / "config.yaml").read_text()
    assert main(["ensemble", "--output", many, "--resume"]) == 0
    assert main(["predict", many, "--data", str(path), "--output", str(tmp_path / "p.nc")]) == 0
    with netCDF4.Dataset(tmp_path / "p.nc") as file:
        assert (file["sample_role"][:] == TRAINING).all()  # of one fold or another


@pytest.mark.parametrize("settings", ["run.yaml", "run/config.yaml"])
def test_a_resumed_run_may_be_tested_on_files(tmp_path, monkeypatch, capsys, settings):
    """Its own part stays untrained: the weights are those without the files."""
    monkeypatch.chdir(tmp_path)
    write_table("f.npz", 6000)
    write_table("b.npz", 700)
    (tmp_path / "run.yaml").write_text("data: {data_path: f.npz, split: random}\n")
    given = [*TINY, "--output", "run"]
    assert main(["train", "run.yaml", *given, "--epochs", "1"]) == 0
    assert main(["train", "run.yaml", *TINY, "--output", "whole", "--epochs", "2"]) == 0
    assert main(["train", settings, *given, "--epochs", "2", "--resume", "data.test_path=b.npz"]) == 0
    assert "700 samples of b.npz" in capsys.readouterr().out
    assert result_of(tmp_path / "run")["weights_sha256"] == result_of(tmp_path / "whole")["weights_sha256"]
    assert main(["predict", "run", "--data", "f.npz", "--output", "p.nc"]) == 0
    with netCDF4.Dataset("p.nc") as file:
        assert (file["sample_role"][:] == TEST).sum() > 500


def test_a_test_that_is_not_asked_for_is_never_most_of_the_samples():
    from mpitrain.data.dataset.split import _roles_of_blocks
    from mpitrain.data.dataset.split_rule import SplitRule

    sizes = [9300, 100, 100, 100, 100, 100, 100, 100]
    blocks = np.repeat(np.arange(8), sizes)
    for seed in range(64):
        for used in (None, np.ones(len(blocks), dtype=bool)):
            roles = _roles_of_blocks(blocks, DataSection(), SplitRule(0.0, 0.1, seed, test=0.1), "blocks", used)[0]
            assert (roles == TEST).sum() <= 2000
            assert (roles == TRAINING).any()


def test_few_fields_are_not_read_to_count_them(tmp_path, monkeypatch):
    x = RANDOM.normal(size=(60, 8, 12))
    np.savez(tmp_path / "f.npz", x=x, y=x)
    config = config_of(tmp_path / "f.npz", "data.samples=fields")
    source = open_source(selection_of(config))
    monkeypatch.setattr(type(source), "read", None)
    assert plan_split(config.split_data, source).test == 0.0
    rule = planned(tmp_path / "f.npz", "data.samples=fields", "data.validation_split=0", "data.test_split=0.2")[0]
    assert not (roles_of(rule, 60) == VALIDATION).any()


def test_python_has_the_skill_of_the_test(tmp_path):
    x = RANDOM.normal(size=6000)
    run = mpitrain.train({"x": x, "y": 2 * x}, inputs=["x"], targets=["y"], output=str(tmp_path / "run"), epochs=1)
    assert set(run.test_skill) == {"y"}
    assert run.test_skill["y"]["rmse"] > 0
