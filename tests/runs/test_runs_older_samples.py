"""Runs of before keep their samples: `data.rules` is recorded, and a folder without it has the first rules."""

import json
import re
from pathlib import Path

import netCDF4
import numpy as np
import pytest

import mpitrain
import mpitrain.runs.prepare as prepare_module
from mpitrain.cli.main import main
from mpitrain.train.checkpoint.store import RULES_KEY

SETTINGS = ("variables.input_variables=[x]", "variables.output_variables=[y]", "data.split=time", "model.name=mlp",
            "model.hidden_size=4", "training.global_batch_size=16", "training.scheduler=null")  # fmt: skip


def train(*more: str) -> int:
    return main(["train", *SETTINGS, *more])


@pytest.fixture
def stations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of four stations, one after the other, each with the same forty days."""
    random = np.random.default_rng(0)
    when = np.tile(np.datetime64("2001-01-01") + np.arange(40), 4)
    x = random.normal(size=160)
    monkeypatch.chdir(tmp_path)
    np.savez("stations.npz", when=when, x=x, y=2 * x + random.normal(size=160))
    return tmp_path


@pytest.fixture
def older(stations: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two epochs as it was before rules were recorded."""
    settings_of = prepare_module.checkpoint_settings

    def without_rules(*given, **named):
        return {key: value for key, value in settings_of(*given, **named).items() if key != RULES_KEY}

    with monkeypatch.context() as patched:
        patched.setattr(prepare_module, "checkpoint_settings", without_rules)
        assert train("--data", "stations.npz", "--output", "old", "--epochs", "2", "data.rules=1") == 0
    folder = stations / "old"
    config = folder / "config.yaml"
    config.write_text(re.sub(r"\n  rules: 1\n", "\n", config.read_text()))
    for name in ("run_record.json", "statistics.json"):
        record = json.loads((folder / name).read_text(), object_pairs_hook=_without_rules)
        (folder / name).write_text(json.dumps(record))
    texts = {path: path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".yaml")}
    assert not [path for path, text in texts.items() if "rules: " in text or '"rules"' in text]
    return folder


def _without_rules(pairs: list) -> dict:
    return {key: value for key, value in pairs if key != "rules"}


def held_out(run: str) -> list[int]:
    assert main(["predict", run, "--data", "stations.npz", "--output", f"{run}.nc", "--overwrite"]) == 0
    with netCDF4.Dataset(f"{run}.nc") as file:
        return np.flatnonzero(file["sample_role"][:].reshape(-1) == 2).tolist()


def hash_of(run: Path) -> str:
    return str(json.loads((run / "run_record.json").read_text())["result"]["weights_sha256"])


def test_a_run_of_before_keeps_its_samples(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_rows = held_out("old")
    assert len({row // 8 for row in of_rows}) == len(of_rows) // 8 == 2  # two stretches of rows
    assert main(["train", "--resume", "old", "--epochs", "4"]) == 0
    assert train("--data", "stations.npz", "--output", "whole", "--epochs", "4", "data.rules=1") == 0
    assert hash_of(older) == hash_of(older.with_name("whole"))
    assert held_out("old") == of_rows
    assert main(["reproduce", "old"]) == 0, capsys.readouterr().err


def test_a_file_of_settings_goes_on_with_the_rules_of_the_run(older: Path) -> None:
    Path("run.yaml").write_text("data: {data_path: stations.npz, split: time}\noutput: {model_dir: old}\n")
    assert main(["train", "run.yaml", *SETTINGS, "--epochs", "3", "--resume"]) == 0
    assert "  rules: 1\n" in (older / "config.yaml").read_text()


def test_other_rules_are_refused_in_a_line(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "old", "--epochs", "3", "data.rules=2"]) == 2
    error = capsys.readouterr().err
    assert "written with data.rules=1, this run has 2; resume with data.rules=1, or start a new run" in error
    assert older.is_dir()


def test_a_new_run_records_the_newest_rules(stations: Path) -> None:
    assert train("--data", "stations.npz", "--output", "new", "--epochs", "1") == 0
    assert "  rules: 2\n" in (stations / "new" / "config.yaml").read_text()
    days = {row % 40 for row in held_out("new")}
    assert held_out("new") == [row for row in range(160) if row % 40 in days]


def test_a_quick_run_statistics_and_python_follow_the_rules_of_the_run(
    older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "old/config.yaml", "--debug"]) == 0
    assert "  rules: 1\n" in Path("old-debug/config.yaml").read_text()
    capsys.readouterr()
    assert main(["data", "stats", "old/config.yaml", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["variables"]
    recorded = json.loads((older / "statistics.json").read_text())["variables"]
    assert [one["mean"] for one in measured] == pytest.approx([one["mean"] for one in recorded], rel=1e-6)
    assert mpitrain.open("old").config.data.rules == 1


def test_settings_in_the_folder_that_they_name_are_no_run_of_before(stations: Path) -> None:
    folder = stations / "new"
    folder.mkdir()
    (folder / "config.yaml").write_text("data: {data_path: stations.npz, split: time}\noutput: {model_dir: new}\n")
    assert main(["train", "new/config.yaml", *SETTINGS, "--epochs", "1", "--overwrite"]) == 0
    assert "  rules: 2\n" in (folder / "config.yaml").read_text()


@pytest.mark.parametrize("damaged", [None, "one", 7, [1]])
def test_rules_that_are_none_are_a_damaged_checkpoint(
    stations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damaged: object
) -> None:
    settings_of = prepare_module.checkpoint_settings
    with monkeypatch.context() as patched:
        patched.setattr(
            prepare_module,
            "checkpoint_settings",
            lambda *given, **named: {**settings_of(*given, **named), RULES_KEY: damaged},
        )
        assert train("--data", "stations.npz", "--output", "bad", "--epochs", "1") == 0
    assert main(["train", "--resume", "bad", "--epochs", "2"]) == 2
    assert "its manifest is not valid" in capsys.readouterr().err.splitlines()[-1]
    assert stations.is_dir()


def test_an_ensemble_of_before_goes_on_with_its_samples_and_its_settings_file(
    stations: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "data: {data_path: stations.npz, split: time}\nensemble: {members: 2}\noutput: {model_dir: ens}\n"
    Path("ens.yaml").write_text(text)
    words = ["ensemble", "ens.yaml", *SETTINGS, "--epochs", "1"]
    assert main([*words, "data.rules=1"]) == 0
    for config in Path("ens").rglob("config.yaml"):
        config.write_text(re.sub(r"\n  rules: 1\n", "\n", config.read_text()))
    assert main([*words, "--resume"]) == 0, capsys.readouterr().err
    assert main(["ensemble", "--output", "ens", "--resume"]) == 0, capsys.readouterr().err
    assert "  rules: 1\n" in Path("ens/config.yaml").read_text()


def test_a_run_records_the_step_of_its_lags_for_predictions(stations: Path) -> None:
    days = np.delete(np.arange(60), [10, 20, 30])
    for name, numbers in (("daily", days), ("mondays", 100 + 7 * np.arange(8)), ("later", 200 + np.arange(5))):
        times = np.datetime64("2001-01-01") + numbers
        np.savez(f"{name}.npz", when=times, x=numbers * 1.0, y=numbers * 1.0)
    words = [*SETTINGS, "variables.input_variables=['x[time-1]']", "data.split=random", "--epochs", "1"]
    assert main(["train", *words, "--data", "daily.npz", "--output", "run"]) == 0
    assert "  lag_step_days: 1.0\n" in Path("run/config.yaml").read_text()
    ensemble = ["ensemble", *words, "--data", "daily.npz", "--members", "2", "--output", "ens"]
    assert main(ensemble) == 0
    assert main([*ensemble, "--resume"]) == 0
    for folder in ("run", "ens"):
        for name, count in (("mondays", 0), ("later", 4)):
            words = ["predict", folder, "--data", f"{name}.npz", "--output", f"{folder}_{name}.nc"]
            assert main(words) == (0 if count else 2)
            if count:
                with netCDF4.Dataset(f"{folder}_{name}.nc") as file:
                    assert np.ma.count(file["y"][:]) == count
    assert main(["train", "--resume", "run", "--epochs", "2"]) == 0


def test_lags_of_a_run_of_before_count_rows(stations: Path) -> None:
    days = np.delete(np.arange(60), [10, 20, 30])
    np.savez("gaps.npz", when=np.datetime64("2001-01-01") + days, x=days * 1.0, y=days * 1.0)
    inputs = "variables.input_variables=['x[time-1]']"
    for rules, count in ((1, 56), (2, 53)):
        words = [
            "train",
            *SETTINGS,
            "--data",
            "gaps.npz",
            "--output",
            f"r{rules}",
            "--epochs",
            "1",
            "data.split=random",
        ]
        assert main([*words, inputs, f"data.rules={rules}"]) == 0
        samples = json.loads(Path(f"r{rules}/statistics.json").read_text())["samples"]
        assert samples["kept"] == count
        assert main(["predict", f"r{rules}", "--data", "gaps.npz", "--output", f"r{rules}.nc"]) == 0
        with netCDF4.Dataset(f"r{rules}.nc") as file:
            assert (file["sample_role"][:].reshape(-1) > 0).sum() == count


def write_settings() -> tuple[str, ...]:
    """Write settings that name no split, as of a job that is requeued; what is given beside them."""
    Path("run.yaml").write_text("data:\n  data_path: stations.npz\nmodel:\n  name: mlp\n")
    return tuple(one for one in SETTINGS if not one.startswith(("data.split", "model.")))


@pytest.mark.parametrize("begun", ["auto", "random"])
def test_a_run_goes_on_with_the_split_that_it_began_with(stations: Path, begun: str) -> None:
    """A settings file that names no split, as before there was auto, and a folder that records what it was."""
    given = ("run.yaml", *write_settings())
    assert main(["train", *given, "--output", "whole", "--epochs", "4", f"data.split={begun}"]) == 0
    assert main(["train", *given, "--output", "halves", "--epochs", "2", f"data.split={begun}"]) == 0
    recorded = "split: time" if begun == "auto" else "split: random"
    assert recorded in Path("halves/config.yaml").read_text()
    assert main(["train", *given, "--output", "halves", "--epochs", "4", "--resume"]) == 0
    assert recorded in Path("halves/config.yaml").read_text()
    assert hash_of(Path("halves")) == hash_of(Path("whole"))
    roles = held_out("halves")
    assert roles == held_out("whole")
    days = {row % 40 for row in roles}
    assert (len(roles) == 4 * len(days) == 16) == (begun == "auto")


@pytest.mark.parametrize("begun", ["auto", "random"])
def test_an_ensemble_goes_on_with_the_split_that_it_began_with(stations: Path, begun: str) -> None:
    given = ("run.yaml", *write_settings(), "--output", "many", "ensemble.members=2")
    assert main(["ensemble", *given, "--epochs", "2", f"data.split={begun}"]) == 0
    member = Path("many/members/0001")
    before = hash_of(member)
    for path in sorted(member.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    member.rmdir()
    assert main(["ensemble", *given, "--epochs", "2", "--resume"]) == 0
    assert hash_of(member) == before
    assert f"split: {'time' if begun == 'auto' else 'random'}" in (member / "config.yaml").read_text()


def test_members_that_are_added_have_the_split_that_the_others_began_with(stations: Path) -> None:
    """In a grid of settings too; what the ensemble holds out is in its own settings and those of the best."""
    given = ("run.yaml", *write_settings(), "ensemble.grid={model.hidden_size: [2, 3]}", "--epochs", "1")
    for begun, recorded in (("random", "random"), ("auto", "time")):
        assert main(["ensemble", *given, "--output", begun, f"data.split={begun}"]) == 0
        assert main(["ensemble", *given, "--output", begun, "ensemble.members=2", "--resume"]) == 0
        written = [*Path(begun).glob("members/*/config.yaml"), Path(begun) / "config.yaml", Path(begun) / "best.yaml"]
        assert len(written) == 6
        assert all(f"split: {recorded}\n" in path.read_text() for path in written)
        assert main(["ensemble", "--output", begun, "--resume"]) == 0


def test_a_folder_that_records_chance_says_nothing_of_it(stations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [one for one in SETTINGS if not one.startswith("data.split")]
    given = ("train", "--data", "stations.npz", *names, "--output", "run", "data.validation_split=0")
    assert main([*given, "--epochs", "1", "data.split=random"]) == 0
    assert main(["train", "run/config.yaml", "--resume", "--epochs", "2"]) == 0
    assert "no effect" not in capsys.readouterr().err


def test_blocks_and_groups_that_the_settings_do_not_name_are_those_that_the_run_began_with(
    stations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, names = ("train", "run.yaml", *write_settings(), "--output"), np.repeat(list("abcd"), 40)
    with np.load("stations.npz") as file:
        columns = dict(file)
    np.savez("stations.npz", **columns, basin=names, lake=names)
    for begun in (("data.split=time", "data.split_blocks=10"), ("data.split=group", "data.group=basin")):
        run = begun[0].rpartition("=")[2]
        assert main([*given, run, "--epochs", "1", *begun]) == 0
        before = held_out(run)
        assert main([*given, run, "--epochs", "2", "--resume"]) == 0
        assert main([*given, f"{run}-whole", "--epochs", "2", *begun]) == 0
        assert hash_of(Path(run)) == hash_of(Path(f"{run}-whole"))
        assert held_out(run) == before
        recorded = Path(run, "config.yaml").read_text()
        assert all(f"{one.removeprefix('data.').replace('=', ': ')}\n" in recorded for one in begun)
    assert len(before) == 40
    assert len(set(names[before])) == 1
    capsys.readouterr()
    assert main([*given, "group", "--epochs", "2", "--resume", "data.split=group", "data.group=lake"]) == 2
    assert "written with data.group=" in capsys.readouterr().err
